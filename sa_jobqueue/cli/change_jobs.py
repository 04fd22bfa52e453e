"""``retry``, ``cancel``, ``release`` and ``reprioritize``: changes of jobs by keys or options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ..fence.claim import jobs_with_keys
from ..model.queue_name import queue_name
from ..overview import FailedJob, failed_jobs, overview
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .asking import ask, yes_option
from .engine import open_engine, require_table
from .job_keys import Key, jobs_of_keys, keys_from, keys_text
from .options import assume_locks_option, json_option, queue_argument, url_option
from .targets import load_queue

#: How many jobs one transaction changes.
BATCH = 500

#: Changes jobs, and returns those that it has changed.
Verb = Callable[[Session, list[Any]], Iterable[Any]]

keys_argument = click.argument("keys", metavar="[KEY]...", nargs=-1)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option("--failed", is_flag=True, help="All failed jobs; needs the index of failed jobs.")
@yes_option
@json_option
def retry(
    queue: str, keys: tuple[str, ...], url: str | None, failed: bool, yes: bool, as_json: bool
) -> None:
    """Make finished jobs of MODULE:QUEUE claimable again: those with these keys, or all failed."""
    change = opened(queue, url, "retry")
    if named(keys, failed, "--failed"):
        change.of_keys(keys, change.queue.retry, yes=yes, as_json=as_json)
        return
    change.ask(f"retry {count_failed(change)} failed jobs", yes=yes)
    change.tell(retry_failed(change), as_json=as_json)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option("--all", "every", is_flag=True, help="All unclaimed jobs, due or not.")
@yes_option
@json_option
def cancel(
    queue: str, keys: tuple[str, ...], url: str | None, every: bool, yes: bool, as_json: bool
) -> None:
    """Cancel unclaimed jobs of MODULE:QUEUE: those with these keys, or all of them."""
    change = opened(queue, url, "cancel")
    if named(keys, every, "--all"):
        change.of_keys(keys, change.queue.cancel, yes=yes, as_json=as_json)
        return
    change.ask(f"cancel all unclaimed jobs ({change.seen().due} due, and those due later)", yes=yes)
    change.tell(cancel_all(change), as_json=as_json)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option("--owner", metavar="NAME", help="All jobs that this owner has claimed.")
@yes_option
@json_option
def release(
    queue: str, keys: tuple[str, ...], url: str | None, owner: str | None, yes: bool, as_json: bool
) -> None:
    """Take claimed jobs of MODULE:QUEUE from their owners, so that they can be claimed again.

    A handler that still runs goes on, and its claim is lost: nothing that it finishes is written.
    """
    change = opened(queue, url, "release")
    if owner is None:
        named(keys, False, "--owner")
        change.of_keys(keys, release_jobs(change.queue), yes=yes, as_json=as_json)
        return
    named(keys, True, "--owner")
    change.ask(f"release all jobs that {owner} has claimed", yes=yes)
    change.tell(release_owner(change, owner), as_json=as_json)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option(
    "--priority",
    type=click.IntRange(-(2**15), 2**15 - 1),
    required=True,
    metavar="N",
    help="The smallest is claimed first.",
)
@yes_option
@json_option
def reprioritize(
    queue: str, keys: tuple[str, ...], url: str | None, priority: int, yes: bool, as_json: bool
) -> None:
    """Give the unclaimed jobs of MODULE:QUEUE with these keys another priority."""
    change = opened(queue, url, "reprioritize")
    named(keys, False, "")
    change.of_keys(
        keys,
        lambda session, jobs: change.queue.reprioritize(session, jobs, priority),
        yes=yes,
        as_json=as_json,
        how=f" to {priority}",
    )


def named(keys: Sequence[str], others: bool, option: str) -> bool:
    """Tell whether keys name the jobs.

    Raises:
        UsageError: keys and an option name jobs, or neither does.
    """
    if bool(keys) == others:
        way = f"give keys, or {option}" if option else "give keys"
        raise click.UsageError(f"which jobs? {way}" if not keys else f"{way}, not both")
    return bool(keys)


@dataclass(frozen=True)
class Change:
    """A verb on a queue of an open database.

    Attributes:
        verb: its name, which is also that of the command.
    """

    engine: Engine
    queue: JobQueue[Any]
    verb: str

    def ask(self, what: str, *, yes: bool) -> None:
        """Go on if the user agrees."""
        ask(f"{what} of {queue_name(self.queue)}", yes=yes)

    def seen(self) -> Any:
        """Return the queue's overview."""
        with Session(self.engine) as session:
            return overview(session, [self.queue])[0]

    def of_keys(
        self, texts: Sequence[str], verb: Verb, *, yes: bool, as_json: bool, how: str = ""
    ) -> None:
        """Change the jobs with these keys, and tell which were left alone."""
        keys = keys_from(self.queue.mapping, texts)
        jobs = "1 job" if len(keys) == 1 else f"{len(keys):,} jobs"
        ask(f"{self.verb} {jobs} of {queue_name(self.queue)}{how}: {keys_text(keys)}", yes=yes)
        changed = self.run(keys, verb)
        self.tell(changed, [key for key in keys if key not in set(changed)], as_json=as_json)

    def run(self, keys: Sequence[Key], verb: Verb) -> list[Key]:
        """Change jobs in a transaction; return the keys of those that were changed."""

        def work(session: Session) -> list[Key]:
            return _keys(verb(session, jobs_of_keys(session, self.queue, keys)))

        return run_with_retries(self.engine, work)

    def tell(
        self, changed: Iterable[Key], left: Sequence[Key] = (), *, as_json: bool = False
    ) -> None:
        """Print what was changed, and what was not."""
        done = list(changed)
        if as_json:
            told = {"queue": queue_name(self.queue), "verb": self.verb}
            click.echo(json.dumps({**told, "changed": done, "left": left}, default=str))
            return
        click.echo(f"{self.verb}: {len(done):,} {'job' if len(done) == 1 else 'jobs'}")
        if left:
            click.echo(f"left alone, for their status or queue is another: {keys_text(left)}")


def opened(target: str, url: str | None, verb: str) -> Change:
    """Load a queue, and connect."""
    queue = load_queue(target)
    engine = open_engine(url)
    require_table(engine, queue.mapping.table)
    return Change(engine, queue, verb)


def count_failed(change: Change) -> Any:
    """Count the failed jobs.

    Raises:
        ArgumentError: no index finds them.
    """
    with Session(change.engine) as session:
        failed_jobs(session, change.queue, limit=1)
    return change.seen().failed


def retry_failed(change: Change) -> Iterator[Key]:
    """Retry page after page; jobs that fail meanwhile stay failed."""
    last: FailedJob | None = None
    while True:
        with Session(change.engine) as session:
            page = failed_jobs(session, change.queue, limit=BATCH, before=last)
        if not page:
            return
        last = page[-1]
        yield from change.run([job.key for job in page], change.queue.retry)


def cancel_all(change: Change) -> Iterator[Key]:
    """Cancel batch after batch, until nothing is left."""
    while changed := run_with_retries(
        change.engine, lambda session: _keys(_cancel_some(session, change.queue))
    ):
        yield from changed


def _cancel_some(session: Session, queue: JobQueue[Any]) -> list[Any]:
    spec = queue.plan.spec
    unclaimed = select(spec.mapping.entity).where(spec.mapping.has_status(spec.ready), *spec.where)
    return queue.cancel(session, session.scalars(unclaimed.limit(BATCH)).unique().all())


def release_jobs(queue: JobQueue[Any]) -> Verb:
    """Return a function that releases those of the jobs that are claimed."""

    def work(session: Session, jobs: list[Any]) -> list[Any]:
        owner = queue.mapping.attributes["owner"]
        return [
            released
            for name in dict.fromkeys(getattr(job, owner) for job in jobs)
            if name
            for released in _release(session, queue, name, set(_keys(jobs)))
        ]

    return work


def release_owner(change: Change, owner: str) -> list[Key]:
    """Release all that an owner has claimed; return the keys."""
    return run_with_retries(
        change.engine, lambda session: _keys(_release(session, change.queue, owner))
    )


def _release(
    session: Session, queue: JobQueue[Any], owner: str, only: set[Key] | None = None
) -> list[Any]:
    claimed = queue.claimed_by(session, owner)
    jobs = [job for job in claimed if only is None or _keys([job])[0] in only]
    queue.release(session, jobs)
    return jobs


def _keys(jobs: Iterable[Any]) -> list[Key]:
    return [tuple(key) for _, _, key in jobs_with_keys(list(jobs))]
