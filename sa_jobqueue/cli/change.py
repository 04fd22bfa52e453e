"""Changes: of jobs, by their keys or by an option, of queues and of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import click

from .. import control
from ..ages import count_text, duration_text, time_text
from ..counts import count_failed
from ..databases.clock import time_of
from ..model.columns import first_line
from ..model.keys import queue_name
from ..schedules import ScheduleInfo, Schedules
from ..steering import Key, Steering, Verb, keys_from, keys_text, keys_without, verb_of
from .command import FULL, JSON, YES, Place, command, show, tell
from .options import flag, given, number, seconds, text
from .printing import say, whole
from .see import workers_of


@command(of_jobs=True)
def retry(at: Place, failed: bool = flag("Retry all failed jobs.")) -> Any:
    """Make finished jobs claimable again.

    Give the keys of the jobs, or --failed. In a table of more than 10,000 rows, --failed needs the
    index of failed jobs.
    """
    until = at.read(time_of)  # none that fails later is retried
    count = at.read(partial(count_failed, queue=at.queue, until=until)) if failed else 0
    which = f"{count} failed jobs", partial(Steering(at.engine, at.queue).retry_failed, until)
    return change(at, at.queue.retry, "--failed", which if failed else None)


@command(of_jobs=True)
def cancel(at: Place) -> Any:
    """Cancel unclaimed jobs."""
    return change(at, at.queue.cancel)


@command(of_jobs=True)
def release(at: Place, owner: str | None = text("Release all jobs of this owner.")) -> Any:
    """Return claimed jobs to the queue.

    Give the keys of the jobs, or --owner. A handler that still runs is not stopped, but its claim
    is lost: its finish is not written.
    """
    release_all = partial(Steering(at.engine, at.queue).release_owner, owner or "")
    which = (f"all jobs that {owner} has claimed", release_all) if owner else None
    return change(at, verb_of(at.queue, "release"), "--owner", which)


PRIORITY = "The new priority. The smallest is claimed first."
WITHIN = {"least": -(2**15), "most": 2**15 - 1}


@command(of_jobs=True)
def reprioritize(at: Place, priority: int = number(PRIORITY, **WITHIN, required=True)) -> Any:
    """Change the priority of unclaimed jobs."""
    return change(at, partial(at.queue.reprioritize, priority=priority))


@command(of_jobs=True)
def request_stop(at: Place) -> Any:
    """Ask workers to stop claimed jobs.

    A handler stops if it checks job_context().asked_to_stop. Jobs that nobody has claimed are left
    alone.
    """
    return change(at, verb_of(at.queue, "stop"))


def change(
    at: Place,
    verb: Verb,
    way: str = "",
    every: tuple[str, Callable[[], Iterable[Key]]] | None = None,
) -> Any:
    """Ask, and change the jobs that the keys name, or all of some kind; say which.

    Args:
        way: the option that names jobs without keys.
        every: what it names, in words, and what changes them; None: it was not given.

    Raises:
        UsageError: neither keys nor the option name jobs, or both do.
    """
    if bool(given("keys")) is bool(every):
        raise click.UsageError(f"name the jobs by their keys{way and f', or by {way}'}")
    keys = keys_from(at.queue.mapping, given("keys"))
    jobs, work = every or (
        f"{count_text(len(keys), 'job')} of {at.names}: {keys_text(keys)}",
        partial(Steering(at.engine, at.queue).change, keys, verb),
    )
    name, of = click.get_current_context().info_name, f" of {at.names}" if every else ""
    at.ask(f"{name} {jobs}{of}")
    changed = list(work())
    left = keys_without(keys, changed)
    tell(f"{name}: {count_text(len(changed), 'job')}")
    if left:
        tell(f"left alone, for their status or queue is another: {keys_text(left)}")
    return {"queue": queue_name(at.queue), "verb": name, "changed": changed, "left": left}


@command(YES, JSON)
def prune(
    at: Place,
    older_than: timedelta = seconds("Delete jobs finished before.", zero=True, required=True),
    status: tuple[str, ...] = text("Of this status, not completed.", "WORD", multiple=True),
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
        tell(f"prune: {count_text(deleted, 'job')} of {name}")
    return told


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
    reaped = Counter(
        (job.owner or "nobody", job.reason, "failed" if job.failed else "can be claimed again")
        for queue in at.queues.values()
        for job in Steering(at.engine, queue).reap(lease=lease, max_runtime=max_runtime)
    )
    for (owner, reason, now), count in reaped.items():
        say(f"{count:,} of {owner}: {reason}, {now}")
    if not reaped:
        say("nothing to reap")


# -- queues and schedules ------------------------------------------------------


@command(YES)
def pause(at: Place) -> None:
    """Stop all workers from claiming jobs.

    Handlers that run finish their jobs.
    """
    _switch(at, control.pause, "pause", "is paused", "was paused already")


@command(YES)
def resume(at: Place) -> None:
    """Let workers claim jobs again."""
    _switch(at, control.resume, "resume", "is resumed", "was not paused")


def _switch(at: Place, change: Callable[..., bool], verb: str, done: str, undone: str) -> None:
    """Pause or resume the queues; ask first, and tell how many workers it concerns."""
    states = Counter(worker.state.name.lower() for worker in workers_of(at))
    concerned = ", ".join(f"{number} {state}" for state, number in states.items()) or "none"
    at.ask(f"{verb} {at.names} (workers: {concerned})")
    for name, queue in at.named.items():
        is_changed = Steering(at.engine, queue).run(partial(change, queue=queue))
        say(f"{name} {done if is_changed else undone}")


@command(FULL, YES, JSON)
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
    by_name = {queue_name(queue): queue for queue in at.queues.values()}
    queues = {info.name: by_name.get(info.queue, at.queue) for info in at.read(known.all)}
    run_now = partial(known.run_now, queue=queues.get(run or "", at.queue))
    for name, change, what in (
        (pause, known.pause, "pause"),
        (resume, known.resume, "resume"),
        (run, run_now, "insert a job of"),
    ):
        if name is not None:
            at.ask(f"{what} the schedule {name}")
            is_changed = Steering(at.engine, at.queue).run(partial(change, name=name))
            if is_changed is False:  # what is printed below may be JSON
                say(f"the schedule {name} was so already: nothing has changed", err=True)
    infos = at.read(known.all)
    rows = (_row(it, at.called(it.queue)) for it in infos)
    ticks = (whole("next (UTC)"), whole("last (UTC)"))
    columns = (whole("schedule"), "queue", "times", *ticks, "state")
    show(*columns, rows=rows)
    return list(map(vars, infos))


def _row(it: ScheduleInfo, queue: str) -> tuple[object, ...]:
    words = ["paused" if it.paused else "runs"]
    if it.skipped_from is not None:
        words.append(f"missed {time_text(it.skipped_from)} until {time_text(it.skipped_to)} UTC")
    if it.last_error is not None:
        words.append(f"failed: {first_line(it.last_error)}")
    times, state = f"{it.cron} {it.timezone}", ", ".join(words)
    return it.name, queue, times, it.next_tick, it.last_tick, state
