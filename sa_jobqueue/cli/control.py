"""``pause``, ``resume``, ``workers`` and ``schedules``: who works, on what, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TypeVar

import click

from ..control import pause as pause_queue
from ..control import paused, tables_for
from ..control import resume as resume_queue
from ..control import workers as list_workers
from ..model.columns import first_line
from ..model.keys import queue_name
from ..owners.alive import OwnerState
from ..schedules import ScheduleInfo, Schedules
from .command import Place, ask, command, json_option, text, yes_option
from .printing import print_json, print_table, right, time_text
from .see import pause_text

R = TypeVar("R")


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


@command(json_option)
def workers(at: Place, as_json: bool) -> None:
    """List workers and paused queues.

    They are those of the applications that the queues belong to.
    """
    pauses = _listed(at, paused)
    found = [{**vars(it), "state": it.state.name.lower()} for it in _listed(at, list_workers)]
    if as_json:
        print_json({"workers": found, "paused": [vars(it) for it in pauses]})
        return
    columns = ("worker", "state", "host", "pid", "queues", right("jobs"), "seen (UTC)")
    shown = ({**it, "pid": str(it["pid"]), "queues": ", ".join(it["queues"])} for it in found)
    values = itemgetter("name", "state", "host", "pid", "queues", "jobs", "seen_at")
    print_table(*columns, rows=map(values, shown))
    for pause in pauses:
        click.echo(pause_text(pause.queue, pause.since))


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
    listed = Schedules.beside(first)
    if listed is None:
        raise click.ClickException(
            f"the metadata of {first.mapping} has no schedules: make Schedules(metadata) with the "
            "metadata of its table"
        )
    for name, change, verb, effect, unchanged in (
        (pause, listed.pause, "pause", "no jobs", "was paused already"),
        (resume, listed.resume, "resume", "jobs again", "was not paused"),
    ):
        if name is None:
            continue
        ask(f"{verb} the schedule {name}: it will insert {effect}", yes=yes)
        if not at.write(partial(change, name=name)):  # what is printed below may be JSON
            click.echo(f"the schedule {name} {unchanged}: nothing has changed", err=True)
    if run is not None:
        queues = {queue_name(queue): queue for queue in at.queues.values()}
        named = {info.name: info.queue for info in at.read(listed.all)}
        queue = queues.get(named.get(run, ""), first)
        ask(f"insert a job of the schedule {run} into {queue_name(queue)}", yes=yes)
        at.write(lambda session: listed.run_now(session, run, queue))
    infos = at.read(listed.all)
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


def _names(at: Place) -> str:
    return ", ".join(map(queue_name, at.queues.values()))


def _listed(at: Place, in_tables: Callable[..., list[R]]) -> list[R]:
    """Read the control tables of the queues, each once; queues without them are an error."""
    found = (tables_for(None, queue.mapping) for queue in at.queues.values())
    each_once = {id(tables): tables for tables in found}.values()
    return at.read(
        lambda session: [it for tables in each_once for it in in_tables(session, tables=tables)]
    )


def _live(at: Place) -> str:
    """Count the workers of the queues that are alive, and those of which this is not known."""
    names = set(map(queue_name, at.queues.values()))
    states = [each.state for each in _listed(at, list_workers) if names.intersection(each.queues)]
    alive, unknown = states.count(OwnerState.ALIVE), states.count(OwnerState.UNKNOWN)
    text = "1 live worker" if alive == 1 else f"{alive:,} live workers"
    return f"{text} and {unknown:,} of unknown state" if unknown else text


def _change(at: Place, verb: Callable[..., bool], changed: str, unchanged: str) -> None:
    """Pause or resume each queue; print what this changed."""
    for queue in at.queues.values():
        told = changed if at.write(partial(verb, queue=queue)) else unchanged
        click.echo(f"{queue_name(queue)} {told}")
