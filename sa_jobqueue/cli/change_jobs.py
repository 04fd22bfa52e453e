"""Changes of jobs: by their keys or by an option, and ``prune`` and ``reap``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import click
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..control import request_stop as ask_to_stop
from ..counts import Listed, count_failed, list_jobs, overview
from ..errors import ArgumentError
from ..model.keys import queue_name
from ..queue import JobQueue
from ..steering import Key, Steering, Verb, keys_from, keys_text, keys_without, release_jobs
from ..verbs.manage import PRUNE_LIMIT
from ..verbs.reap import ReapedJob
from .command import (
    Option,
    Place,
    ask,
    command,
    flag,
    json_option,
    number,
    seconds,
    text,
    yes_option,
)
from .printing import jobs_text, print_json, printable


@dataclass(frozen=True)
class Change:
    """A change of jobs of a queue, as a command asks for it; `verb` is the command's name."""

    steering: Steering
    queue: JobQueue[Any]
    verb: str
    texts: tuple[str, ...]
    yes: bool
    as_json: bool

    def of_keys(
        self, verb: Verb, option: str = "", value: object = None, *, what: str = "", how: str = ""
    ) -> bool:
        """Change the jobs with these keys; return False if the value of an option names others.

        Args:
            what, how: for the question; by default `what` is the command's name.

        Raises:
            UsageError: keys and the option name jobs, or neither does, or a text is no key.
        """
        if bool(self.texts) == bool(value):
            way = f"give keys, or {option}" if option else "give keys"
            raise click.UsageError(f"{way}, not both" if self.texts else f"which jobs? {way}")
        if not self.texts:
            return False
        try:
            keys = keys_from(self.queue.mapping, self.texts)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error
        jobs = f"{jobs_text(len(keys))} of {queue_name(self.queue)}{how}: {keys_text(keys)}"
        ask(f"{what or self.verb} {jobs}", yes=self.yes)
        changed = self.steering.change(keys, verb)
        self._print(changed, keys_without(keys, changed))
        return True

    def of_all(self, what: str, change: Callable[[], Iterable[Key]]) -> None:
        """Ask, change jobs, and say how many."""
        ask(f"{what} of {queue_name(self.queue)}", yes=self.yes)
        self._print(list(change()), [])

    def _print(self, changed: list[Key], left: list[Key]) -> None:
        if self.as_json:
            told = {"queue": queue_name(self.queue), "verb": self.verb}
            print_json({**told, "changed": changed, "left": left})
            return
        click.echo(f"{self.verb}: {jobs_text(len(changed))}")
        if left:
            click.echo(
                f"left alone, for their status or queue is another: {printable(keys_text(left))}"
            )


def change_command(*options: Option) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that gets a Change, and the values of its options."""

    def declare(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def run(at: Place, keys: tuple[str, ...], yes: bool, as_json: bool, **values: Any) -> None:
            (queue,) = at.queues.values()
            verb = function.__name__.replace("_", "-")
            function(Change(Steering(at.engine, queue), queue, verb, keys, yes, as_json), **values)

        return command(*options, yes_option, json_option, one=True)(run)

    return declare


@change_command(
    flag("--failed", "Retry all; beyond 10,000 rows this needs the index of failed jobs.")
)
def retry(change: Change, failed: bool) -> None:
    """Make finished jobs claimable again.

    Give the keys of the jobs, or --failed.
    """
    if change.of_keys(change.queue.retry, "--failed", failed):
        return
    with Session(change.steering.engine) as session:
        newest = list_jobs(session, change.queue, Listed.FAILED, limit=1, complete=True)
        until = newest[0].owner_date if newest else None  # none that fails later is retried
        count = count_failed(session, change.queue, until=until) if until else 0
    change.of_all(
        f"retry {count} failed jobs", lambda: change.steering.retry_failed(until) if until else ()
    )


@change_command(flag("--all", "Cancel all unclaimed jobs, due or not.", "every"))
def cancel(change: Change, every: bool) -> None:
    """Cancel unclaimed jobs.

    Give the keys of the jobs, or --all.
    """
    if change.of_keys(change.queue.cancel, "--all", every):
        return
    with Session(change.steering.engine) as session:
        (seen,) = overview(session, [change.queue])
    what = f"cancel all unclaimed jobs ({seen.due} due, and those due later)"
    change.of_all(what, change.steering.cancel_all)


@change_command(text("--owner", "Release all jobs that this owner has claimed."))
def release(change: Change, owner: str | None) -> None:
    """Return claimed jobs to the queue.

    Give the keys of the jobs, or --owner. A handler that still runs is not stopped, but its claim
    is lost: its finish is not written.
    """
    if not change.of_keys(release_jobs(change.queue), "--owner", owner):
        what = f"release all jobs that {owner} has claimed"
        change.of_all(what, lambda: change.steering.release_owner(str(owner)))


PRIORITY = "The new priority. The smallest is claimed first."


@change_command(number("--priority", PRIORITY, least=-(2**15), most=2**15 - 1, required=True))
def reprioritize(change: Change, priority: int) -> None:
    """Change the priority of unclaimed jobs."""
    change.of_keys(
        lambda session, jobs: change.queue.reprioritize(session, jobs, priority),
        how=f" to {priority}",
    )


@change_command()
def request_stop(change: Change) -> None:
    """Ask workers to stop claimed jobs.

    A handler stops if it checks job_context().asked_to_stop. Jobs that nobody has claimed are left
    alone.
    """
    change.of_keys(
        lambda session, jobs: [job for job in jobs if ask_to_stop(session, job)],
        what="ask the workers to stop",
    )


@command(
    seconds("--older-than", "Delete jobs that were finished before.", zero=True, required=True),
    text("--status", "Delete jobs with this status, not completed ones.", "WORD", multiple=True),
    yes_option,
    json_option,
)
def prune(
    at: Place, older_than: timedelta, status: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Delete old finished jobs, in batches.

    Each batch is a transaction of its own.
    """
    names = ", ".join(map(queue_name, at.queues.values()))
    which, age = " and ".join(status) or "completed", duration_text(older_than)
    ask(f"delete the {which} jobs of {names} that are older than {age}", yes=yes)
    for queue in at.queues.values():
        delete = partial(queue.prune, older_than=older_than, statuses=status or None)
        deleted = batch = at.write(delete)
        while batch == PRUNE_LIMIT:
            batch = at.write(delete)
            deleted += batch
        if as_json:
            print_json({"queue": queue_name(queue), "verb": "prune", "deleted": deleted})
        else:
            click.echo(f"prune: {jobs_text(deleted)} of {queue_name(queue)}")


@command(
    seconds("--lease", "The lease of owners of unknown state.  [default: the model's lease]"),
    seconds("--max-runtime", "Also reap older claims of the living; 0: all claims.", zero=True),
)
def reap(at: Place, lease: timedelta | None, max_runtime: timedelta | None) -> None:
    """Return claims of dead owners to their queues.

    The command also reaps claims whose lease has expired. For each owner it prints how many jobs
    it reaped, and why.

    The command never asks, since it is made for cron. It leaves the claims of owners that are
    alive, unless you give --max-runtime.
    """
    jobs: list[ReapedJob] = []
    for queue in at.queues.values():
        more = True
        while more:  # each batch is a transaction of its own
            reaped = at.write(partial(queue.reap, lease=lease, max_runtime=max_runtime))
            jobs += reaped.jobs
            more = bool(reaped) and reaped.more
    failed = Counter((job.owner, job.reason) for job in jobs if job.failed)
    for (owner, reason), count in Counter((job.owner, job.reason) for job in jobs).items():
        lost = failed[owner, reason]
        failures = f", {lost:,} failed" if lost else ""
        click.echo(f"{count:,} of {printable(owner or 'nobody')}: {reason}{failures}")
    ends = f"{len(jobs) - failed.total():,} can be claimed again, {failed.total():,} failed"
    click.echo(ends if jobs else "nothing to reap")
