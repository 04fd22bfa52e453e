"""Changes of jobs, by their keys or by an option: ``retry``, ``cancel``, ``prune`` and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..control import request_stop as ask_to_stop
from ..counts import Listed, count_failed, list_jobs, overview
from ..errors import ArgumentError
from ..model.keys import queue_name
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue
from ..steering import Key, Steering, Verb, keys_from, keys_text, keys_without, release_jobs
from ..verbs.manage import PRUNE_LIMIT
from .command import (
    Option,
    Place,
    ask,
    command,
    database_options,
    declared,
    flag,
    json_option,
    seconds,
    text,
    yes_option,
)
from .database import Database
from .printing import jobs_text, print_json, printable
from .targets import load_queues


@dataclass(frozen=True)
class Change:
    """A change of jobs of a queue, as a command asks for it; `verb` is the command's name."""

    engine: Engine
    queue: JobQueue[Any]
    verb: str
    texts: tuple[str, ...]
    yes: bool
    as_json: bool

    @property
    def steering(self) -> Steering:
        """What changes jobs of the queue."""
        return Steering(self.engine, self.queue)

    def has_keys(self, other: object = None, option: str = "") -> bool:
        """Tell whether keys name the jobs, not the value of an option.

        Raises:
            UsageError: both do, or neither does.
        """
        if bool(self.texts) == bool(other):
            way = f"give keys, or {option}" if option else "give keys"
            raise click.UsageError(f"{way}, not both" if self.texts else f"which jobs? {way}")
        return bool(self.texts)

    def of_keys(self, verb: Verb, what: str = "", how: str = "") -> None:
        """Change the jobs with these keys, and say which were left alone; the texts ask first."""
        try:
            keys = keys_from(self.queue.mapping, self.texts)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error
        jobs = f"{jobs_text(len(keys))} of {queue_name(self.queue)}{how}: {keys_text(keys)}"
        ask(f"{what or self.verb} {jobs}", yes=self.yes)
        changed = self.steering.change(keys, verb)
        self._print(changed, keys_without(keys, changed))

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
        def run(
            database: Database,
            target: str,
            keys: tuple[str, ...],
            yes: bool,
            as_json: bool,
            **values: Any,
        ) -> None:
            queues = load_queues([target])
            if len(queues) > 1:
                raise click.UsageError(
                    f"{target} has several queues: name one, {', '.join(queues)}"
                )
            (queue,) = queues.values()
            verb = function.__name__.replace("_", "-")
            database.run(
                lambda engine: function(Change(engine, queue, verb, keys, yes, as_json), **values),
                [queue.mapping.table],
            )

        target = click.argument("target", metavar="MODULE[:QUEUE]")
        keys = click.argument("keys", metavar="[KEY]...", nargs=-1)
        others = (*options, yes_option, json_option, database_options)
        return declared(function, run, target, keys, *others)

    return declare


@change_command(
    flag("--failed", "Retry all; beyond 10,000 rows this needs the index of failed jobs.")
)
def retry(change: Change, failed: bool) -> None:
    """Make finished jobs claimable again.

    Give the keys of the jobs, or --failed.
    """
    if change.has_keys(failed, "--failed"):
        change.of_keys(change.queue.retry)
        return
    with Session(change.engine) as session:
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
    if change.has_keys(every, "--all"):
        change.of_keys(change.queue.cancel)
        return
    with Session(change.engine) as session:
        (seen,) = overview(session, [change.queue])
    what = f"cancel all unclaimed jobs ({seen.due} due, and those due later)"
    change.of_all(what, change.steering.cancel_all)


@change_command(text("--owner", "Release all jobs that this owner has claimed."))
def release(change: Change, owner: str | None) -> None:
    """Return claimed jobs to the queue.

    Give the keys of the jobs, or --owner. A handler that still runs is not stopped, but its claim
    is lost: its finish is not written.
    """
    if change.has_keys(owner, "--owner"):
        change.of_keys(release_jobs(change.queue))
    else:
        what = f"release all jobs that {owner} has claimed"
        change.of_all(what, lambda: change.steering.release_owner(str(owner)))


@change_command(
    text(
        "--priority",
        "The new priority. The smallest is claimed first.",
        "N",
        required=True,
        type=click.IntRange(-(2**15), 2**15 - 1),
    )
)
def reprioritize(change: Change, priority: int) -> None:
    """Change the priority of unclaimed jobs."""
    change.has_keys()
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
    change.has_keys()
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
    stop = THREADS.flag()

    def delete(session: Session) -> int:
        return queue.prune(session, older_than=older_than, statuses=status or None)

    with first_signal_stops(stop.set):
        for queue in at.queues.values():
            deleted = batch = 0 if stop.is_set() else at.write(delete)
            while batch == PRUNE_LIMIT and not stop.is_set():
                batch = at.write(delete)
                deleted += batch
            if as_json:
                print_json({"queue": queue_name(queue), "verb": "prune", "deleted": deleted})
            else:
                click.echo(f"prune: {jobs_text(deleted)} of {queue_name(queue)}")
