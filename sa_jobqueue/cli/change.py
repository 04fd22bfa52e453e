"""Changes: of jobs, by their keys or by an option, of queues and of schedules."""

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
from ..control import pause as pause_queue
from ..control import request_stop as ask_to_stop
from ..control import resume as resume_queue
from ..control import workers as list_workers
from ..counts import Listed, count_failed, list_jobs, overview
from ..errors import ArgumentError
from ..model.columns import first_line
from ..model.keys import queue_name
from ..owners.alive import OwnerState
from ..queue import JobQueue
from ..schedules import ScheduleInfo, Schedules
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
from .printing import jobs_text, print_json, print_table, printable, time_text
from .see import listed


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


# -- queues and schedules ------------------------------------------------------


@command(yes_option)
def pause(at: Place, yes: bool) -> None:
    """Stop all workers from claiming jobs.

    Handlers that run finish their jobs.
    """
    ask(f"pause {_names(at)}: {_live(at)} will claim no more of its jobs", yes=yes)
    _change(at, pause_queue, "is paused", "was paused already")


@command(yes_option)
def resume(at: Place, yes: bool) -> None:
    """Let workers claim jobs again."""
    ask(f"resume {_names(at)}: {_live(at)} will claim its jobs again", yes=yes)
    _change(at, resume_queue, "is resumed", "was not paused")


def _names(at: Place) -> str:
    return ", ".join(map(queue_name, at.queues.values()))


def _live(at: Place) -> str:
    """Count the workers of the queues that are alive, and those of which this is not known."""
    names = set(map(queue_name, at.queues.values()))
    states = [each.state for each in listed(at, list_workers) if names.intersection(each.queues)]
    alive, unknown = states.count(OwnerState.ALIVE), states.count(OwnerState.UNKNOWN)
    text = "1 live worker" if alive == 1 else f"{alive:,} live workers"
    return f"{text} and {unknown:,} of unknown state" if unknown else text


def _change(at: Place, verb: Callable[..., bool], changed: str, unchanged: str) -> None:
    """Pause or resume each queue; print what this changed."""
    for queue in at.queues.values():
        told = changed if at.write(partial(verb, queue=queue)) else unchanged
        click.echo(f"{queue_name(queue)} {told}")


@command(
    text("--pause", "Pause this schedule."),
    text("--resume", "Resume this schedule."),
    text("--run", "Insert a job of this schedule now. Its ticks stay."),
    yes_option,
    json_option,
)
def schedules(
    at: Place, pause: str | None, resume: str | None, run: str | None, yes: bool, as_json: bool
) -> None:
    """List schedules, or change one.

    They are those of the application that the queues belong to.
    """
    first, *_ = at.queues.values()
    known = Schedules.beside(first)
    if known is None:
        raise click.ClickException(
            f"the metadata of {first.mapping} has no schedules: make Schedules(metadata) with the "
            "metadata of its table"
        )
    for name, change, verb, effect, unchanged in (
        (pause, known.pause, "pause", "no jobs", "was paused already"),
        (resume, known.resume, "resume", "jobs again", "was not paused"),
    ):
        if name is None:
            continue
        ask(f"{verb} the schedule {name}: it will insert {effect}", yes=yes)
        if not at.write(partial(change, name=name)):  # what is printed below may be JSON
            click.echo(f"the schedule {name} {unchanged}: nothing has changed", err=True)
    if run is not None:
        queues = {queue_name(queue): queue for queue in at.queues.values()}
        named = {info.name: info.queue for info in at.read(known.all)}
        queue = queues.get(named.get(run, ""), first)
        ask(f"insert a job of the schedule {run} into {queue_name(queue)}", yes=yes)
        at.write(lambda session: known.run_now(session, run, queue))
    infos = at.read(known.all)
    if as_json:
        print_json([vars(info) for info in infos])
        return
    rows = (
        (it.name, it.queue, f"{it.cron} {it.timezone}", it.next_tick, it.last_tick, _state(it))
        for it in infos
    )
    print_table("schedule", "queue", "times", "next (UTC)", "last (UTC)", "state", rows=rows)


def _state(info: ScheduleInfo) -> str:
    words = ["paused" if info.paused else "runs"]
    if info.skipped_from is not None:
        gap = f"{time_text(info.skipped_from)} until {time_text(info.skipped_to)}"
        words.append(f"missed {gap} UTC")
    if info.last_error is not None:
        words.append(f"failed: {first_line(info.last_error)}")
    return ", ".join(words)
