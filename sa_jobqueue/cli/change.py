"""Changes: of jobs, by their keys or by an option, of queues and of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import click

from .. import control
from ..ages import count_text, duration_text
from ..counts import Listed, count_failed, list_jobs, overview
from ..errors import ArgumentError
from ..model.columns import first_line
from ..model.keys import queue_name
from ..owners.alive import OwnerState
from ..schedules import ScheduleInfo, Schedules
from ..steering import Key, Steering, Verb, keys_from, keys_text, keys_without, verb_of
from .command import Place, command
from .options import flag, number, seconds, text
from .printing import say, time_text, whole
from .see import workers_of

ALL_FAILED = "Retry all; beyond 10,000 rows this needs the index of failed jobs."


@command(of_jobs=True)
def retry(at: Place, failed: bool = flag(ALL_FAILED)) -> Any:
    """Make finished jobs claimable again.

    Give the keys of the jobs, or --failed.
    """
    if not failed:
        return change_keys(at, at.queue.retry, "--failed")
    newest = at.read(
        partial(list_jobs, queue=at.queue, which=Listed.FAILED, limit=1, complete=True)
    )
    until = newest[0].owner_date if newest else None  # none that fails later is retried
    count = at.read(partial(count_failed, queue=at.queue, until=until)) if until else 0
    retry_all = Steering(at.engine, at.queue).retry_failed
    return change_all(
        at, "--failed", f"retry {count} failed jobs", lambda: retry_all(until) if until else ()
    )


UNCLAIMED = "Cancel all unclaimed jobs, due or not."


@command(of_jobs=True)
def cancel(at: Place, every: bool = flag(UNCLAIMED, "--all")) -> Any:
    """Cancel unclaimed jobs.

    Give the keys of the jobs, or --all.
    """
    if not every:
        return change_keys(at, at.queue.cancel, "--all")
    (seen,) = at.read(partial(overview, queues=[at.queue]))
    what = f"cancel all unclaimed jobs ({seen.due} due, and those due later)"
    return change_all(at, "--all", what, Steering(at.engine, at.queue).cancel_all)


OF_OWNER = "Release all jobs that this owner has claimed."


@command(of_jobs=True)
def release(at: Place, owner: str | None = text(OF_OWNER)) -> Any:
    """Return claimed jobs to the queue.

    Give the keys of the jobs, or --owner. A handler that still runs is not stopped, but its claim
    is lost: its finish is not written.
    """
    if not owner:
        return change_keys(at, verb_of(at.queue, "release"), "--owner")
    release_all = partial(Steering(at.engine, at.queue).release_owner, owner)
    return change_all(at, "--owner", f"release all jobs that {owner} has claimed", release_all)


PRIORITY = "The new priority. The smallest is claimed first."
WITHIN = {"least": -(2**15), "most": 2**15 - 1}


@command(of_jobs=True)
def reprioritize(at: Place, priority: int = number(PRIORITY, **WITHIN, required=True)) -> Any:
    """Change the priority of unclaimed jobs."""
    verb = partial(at.queue.reprioritize, priority=priority)
    return change_keys(at, verb, how=f" to {priority}")


@command(of_jobs=True)
def request_stop(at: Place) -> Any:
    """Ask workers to stop claimed jobs.

    A handler stops if it checks job_context().asked_to_stop. Jobs that nobody has claimed are left
    alone.
    """
    return change_keys(at, verb_of(at.queue, "stop"), what="ask the workers to stop")


def change_keys(at: Place, verb: Verb, way: str = "", *, what: str = "", how: str = "") -> Any:
    """Change the jobs that the keys name; return what is told as JSON.

    Args:
        way: the option that names jobs without keys.
        what, how: for the question; by default `what` is the command's name.

    Raises:
        UsageError: there are no keys, or a text is no key.
    """
    if not at.keys:
        raise click.UsageError(f"which jobs? give keys{way and f', or {way}'}")
    try:
        keys = keys_from(at.queue.mapping, at.keys)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from error
    jobs = f"{count_text(len(keys), 'job')} of {at.names}"
    at.ask(f"{what or at.verb} {jobs}{how}: {keys_text(keys)}")
    changed = Steering(at.engine, at.queue).change(keys, verb)
    return _told(at, changed, keys_without(keys, changed))


def change_all(at: Place, way: str, what: str, change: Callable[[], Iterable[Key]]) -> Any:
    """Ask, change jobs, and say how many.

    Raises:
        UsageError: keys name jobs, too.
    """
    if at.keys:
        raise click.UsageError(f"give keys, or {way}, not both")
    at.ask(f"{what} of {at.names}")
    return _told(at, list(change()), [])


def _told(at: Place, changed: list[Key], left: list[Key]) -> Any:
    if at.as_json:
        return {"queue": queue_name(at.queue), "verb": at.verb, "changed": changed, "left": left}
    say(f"{at.verb}: {count_text(len(changed), 'job')}")
    if left:
        say(f"left alone, for their status or queue is another: {keys_text(left)}")
    return None


STATUS = "Delete jobs with this status, not completed ones."


@command("yes", "as_json")
def prune(
    at: Place,
    older_than: timedelta = seconds("Delete jobs finished before.", zero=True, required=True),
    status: tuple[str, ...] = text(STATUS, "WORD", multiple=True),
) -> Any:
    """Delete old finished jobs, in batches.

    Each batch is a transaction of its own.
    """
    which, age = " and ".join(status) or "completed", duration_text(older_than)
    at.ask(f"delete the {which} jobs of {at.names} that are older than {age}")
    told: list[dict[str, Any]] = []
    for name, queue in at.named.items():
        deleted = Steering(at.engine, queue).prune(older_than, status)
        told.append({"queue": queue_name(queue), "verb": "prune", "deleted": deleted})
        if not at.as_json:
            say(f"prune: {count_text(deleted, 'job')} of {name}")
    return told if at.as_json else None


@command()
def reap(
    at: Place,
    lease: timedelta | None = seconds("Of owners of unknown state.  [default: the model's lease]"),
    max_runtime: timedelta | None = seconds("Reap older claims of the living; 0: all.", zero=True),
) -> None:
    """Return claims of dead owners to their queues.

    The command also reaps claims whose lease has expired. For each owner it prints how many jobs
    it reaped, and why.

    The command never asks, since it is made for cron. It leaves the claims of owners that are
    alive, unless you give --max-runtime.
    """
    reaped, failed = Counter[tuple[str | None, str]](), Counter[tuple[str | None, str]]()
    for queue in at.queues.values():
        for job in Steering(at.engine, queue).reap(lease=lease, max_runtime=max_runtime):
            reaped[job.owner, job.reason] += 1
            failed[job.owner, job.reason] += job.failed
    for (owner, reason), count in reaped.items():
        lost = failed[owner, reason]
        say(f"{count:,} of {owner or 'nobody'}: {reason}" + f", {lost:,} failed" * bool(lost))
    left = reaped.total() - failed.total()
    ends = f"{left:,} can be claimed again, {failed.total():,} failed"
    say(ends if reaped else "nothing to reap")


# -- queues and schedules ------------------------------------------------------


@command("yes")
def pause(at: Place) -> None:
    """Stop all workers from claiming jobs.

    Handlers that run finish their jobs.
    """
    _switch(at, control.pause, "claim no more of its jobs", "is paused", "was paused already")


@command("yes")
def resume(at: Place) -> None:
    """Let workers claim jobs again."""
    _switch(at, control.resume, "claim its jobs again", "is resumed", "was not paused")


def _switch(at: Place, change: Callable[..., bool], will: str, done: str, undone: str) -> None:
    """Pause or resume the queues; ask first, and tell how many workers will notice."""
    states = [worker.state for worker in workers_of(at)]
    live = count_text(states.count(OwnerState.ALIVE), "live worker")
    if unknown := states.count(OwnerState.UNKNOWN):
        live += f" and {unknown:,} of unknown state"
    at.ask(f"{at.verb} {at.names}: {live} will {will}")
    for name, queue in at.named.items():
        say(f"{name} {done if at.write(partial(change, queue=queue)) else undone}")


@command("full", "yes", "as_json")
def schedules(
    at: Place,
    pause: str | None = text("Pause this schedule."),
    resume: str | None = text("Resume this schedule."),
    run: str | None = text("Insert a job of this schedule now. Its ticks stay."),
) -> Any:
    """List schedules, or change one.

    They are those of the application that the queues belong to.
    """
    known = Schedules.beside(at.queue)
    if known is None:
        raise click.ClickException(
            f"the metadata of {at.queue.mapping} has no schedules: make Schedules(metadata) "
            "with the metadata of its table"
        )
    for name, change, verb, effect, unchanged in (
        (pause, known.pause, "pause", "no jobs", "was paused already"),
        (resume, known.resume, "resume", "jobs again", "was not paused"),
    ):
        if name is None:
            continue
        at.ask(f"{verb} the schedule {name}: it will insert {effect}")
        if not at.write(partial(change, name=name)):  # what is printed below may be JSON
            say(f"the schedule {name} {unchanged}: nothing has changed", err=True)
    if run is not None:
        queues = {queue_name(queue): queue for queue in at.queues.values()}
        named = {info.name: info.queue for info in at.read(known.all)}
        queue = queues.get(named.get(run, ""), at.queue)
        at.ask(f"insert a job of the schedule {run} into {at.called(queue_name(queue))}")
        at.write(lambda session: known.run_now(session, run, queue))
    infos = at.read(known.all)
    rows = (
        (it.name, at.called(it.queue), f"{it.cron} {it.timezone}", *ticks, _state(it))
        for it in infos
        for ticks in [(it.next_tick, it.last_tick)]
    )
    ticks = (whole("next (UTC)"), whole("last (UTC)"))
    columns = (whole("schedule"), "queue", "times", *ticks, "state")
    return at.show(list(map(vars, infos)), *columns, rows=rows)


def _state(info: ScheduleInfo) -> str:
    words = ["paused" if info.paused else "runs"]
    if info.skipped_from is not None:
        gap = f"{time_text(info.skipped_from)} until {time_text(info.skipped_to)}"
        words.append(f"missed {gap} UTC")
    if info.last_error is not None:
        words.append(f"failed: {first_line(info.last_error)}")
    return ", ".join(words)
