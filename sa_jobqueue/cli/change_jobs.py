"""``retry``, ``cancel``, ``release`` and ``reprioritize``: changes of jobs by keys or options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..counts import Listed, count_failed, list_jobs, overview
from ..errors import ArgumentError
from ..model.queue_name import queue_name
from ..queue import JobQueue
from ..steering import Key, Steering, Verb, keys_from, keys_text, keys_without, release_jobs
from .asking import ask, yes_option
from .engine import open_engine, require_table
from .options import assume_locks_option, json_option, queue_argument, url_option
from .targets import load_queue

keys_argument = click.argument("keys", metavar="[KEY]...", nargs=-1)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option(
    "--failed",
    is_flag=True,
    help="Retry all failed jobs. Beyond 10,000 rows this needs the index of failed jobs.",
)
@yes_option
@json_option
def retry(
    queue: str, keys: tuple[str, ...], url: str | None, failed: bool, yes: bool, as_json: bool
) -> None:
    """Make finished jobs of MODULE:QUEUE claimable again.

    Give the keys of the jobs, or --failed.
    """
    change = opened(queue, url, "retry")
    if named(keys, failed, "--failed"):
        change.of_keys(keys, change.queue.retry, yes=yes, as_json=as_json)
        return
    change.retry_failed(yes=yes, as_json=as_json)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option("--all", "every", is_flag=True, help="Cancel all unclaimed jobs, due or not.")
@yes_option
@json_option
def cancel(
    queue: str, keys: tuple[str, ...], url: str | None, every: bool, yes: bool, as_json: bool
) -> None:
    """Cancel unclaimed jobs of MODULE:QUEUE.

    Give the keys of the jobs, or --all.
    """
    change = opened(queue, url, "cancel")
    if named(keys, every, "--all"):
        change.of_keys(keys, change.queue.cancel, yes=yes, as_json=as_json)
        return
    change.ask(f"cancel all unclaimed jobs ({change.seen().due} due, and those due later)", yes=yes)
    change.tell(change.steering.cancel_all(), as_json=as_json)


@click.command()
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@click.option("--owner", metavar="NAME", help="Release all jobs that this owner has claimed.")
@yes_option
@json_option
def release(
    queue: str, keys: tuple[str, ...], url: str | None, owner: str | None, yes: bool, as_json: bool
) -> None:
    """Return claimed jobs of MODULE:QUEUE to the queue.

    Give the keys of the jobs, or --owner. A handler that still runs is not stopped, but its claim
    is lost: its finish is not written.
    """
    change = opened(queue, url, "release")
    if owner is None:
        named(keys, False, "--owner")
        change.of_keys(keys, release_jobs(change.queue), yes=yes, as_json=as_json)
        return
    named(keys, True, "--owner")
    change.ask(f"release all jobs that {owner} has claimed", yes=yes)
    change.tell(change.steering.release_owner(owner), as_json=as_json)


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
    help="The new priority. The smallest is claimed first.",
)
@yes_option
@json_option
def reprioritize(
    queue: str, keys: tuple[str, ...], url: str | None, priority: int, yes: bool, as_json: bool
) -> None:
    """Change the priority of unclaimed jobs of MODULE:QUEUE.

    Give the keys of the jobs.
    """
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

    @property
    def steering(self) -> Steering:
        """What changes jobs of the queue."""
        return Steering(self.engine, self.queue)

    def ask(self, what: str, *, yes: bool) -> None:
        """Go on if the user agrees."""
        ask(f"{what} of {queue_name(self.queue)}", yes=yes)

    def seen(self) -> Any:
        """Return the queue's overview."""
        with Session(self.engine) as session:
            return overview(session, [self.queue])[0]

    def of_keys(
        self,
        texts: Sequence[str],
        verb: Verb,
        *,
        yes: bool,
        as_json: bool,
        what: str | None = None,
        how: str = "",
    ) -> None:
        """Change the jobs with these keys, and tell which were left alone.

        Args:
            what: what the question says of the jobs; by default the name of the command.
            how: the end of the question.
        """
        keys = self._keys(texts)
        jobs = "1 job" if len(keys) == 1 else f"{len(keys):,} jobs"
        ask(
            f"{what or self.verb} {jobs} of {queue_name(self.queue)}{how}: {keys_text(keys)}",
            yes=yes,
        )
        changed = self.steering.change(keys, verb)
        self.tell(changed, keys_without(keys, changed), as_json=as_json)

    def retry_failed(self, *, yes: bool, as_json: bool) -> None:
        """Retry the failed jobs that the question counts, and none that fails later."""
        with Session(self.engine) as session:
            newest = list_jobs(session, self.queue, Listed.FAILED, limit=1, complete=True)
            until = newest[0].owner_date if newest else None
            count = until and count_failed(session, self.queue, until=until)
        self.ask(f"retry {count or 0} failed jobs", yes=yes)
        self.tell(self.steering.retry_failed(until) if until else (), as_json=as_json)

    def _keys(self, texts: Sequence[str]) -> list[Key]:
        try:
            return keys_from(self.queue.mapping, texts)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error

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
