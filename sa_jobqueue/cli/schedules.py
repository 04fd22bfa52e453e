"""``schedules``: when they run, and what was missed; to pause one, to resume it, to run it now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..model.last_error import first_line
from ..model.mapping import mapping_of
from ..model.queue_name import queue_name
from ..queue import JobQueue
from ..schedules import ScheduleInfo, Schedules
from ..sessions.transactions import run_with_retries
from .asking import ask, yes_option
from .engine import open_engine, require_table
from .harmless import harmless
from .options import assume_locks_option, json_option, queue_argument, url_option
from .targets import load_queue


@click.command()
@queue_argument
@url_option
@assume_locks_option
@json_option
@click.option("--pause", metavar="NAME", help="Pause this schedule.")
@click.option("--resume", metavar="NAME", help="Resume this schedule.")
@click.option(
    "--run",
    metavar="NAME",
    help="Insert a job of this schedule of MODULE:QUEUE now. Its ticks stay.",
)
@yes_option
def schedules(
    queue: str,
    url: str | None,
    as_json: bool,
    pause: str | None,
    resume: str | None,
    run: str | None,
    yes: bool,
) -> None:
    """List schedules, or change one.

    They are those of the application that MODULE:QUEUE belongs to.
    """
    found = load_queue(queue)
    listed = schedules_beside(found)
    engine = open_engine(url)
    require_table(engine, mapping_of(listed.entity).table)
    change(engine, listed, found, pause=pause, resume=resume, run=run, yes=yes)
    with Session(engine) as session:
        infos = listed.all(session)
    if as_json:
        click.echo(json.dumps([as_data(info) for info in infos], indent=2))
    else:
        Console().print(schedules_table(infos))


def schedules_beside(queue: JobQueue[Any]) -> Schedules:
    """Return the schedules in the metadata of a queue's table.

    Raises:
        ClickException: there are none; names the way out.
    """
    found = Schedules.beside(queue)
    if found is None:
        raise click.ClickException(
            f"the metadata of {queue.mapping} has no schedules: make Schedules(metadata) with the "
            "metadata of its table"
        )
    return found


def change(
    engine: Engine,
    listed: Schedules,
    queue: JobQueue[Any],
    *,
    pause: str | None,
    resume: str | None,
    run: str | None,
    yes: bool,
) -> None:
    """Do what the options ask for, each in a transaction, after a question."""
    if pause is not None:
        ask(f"pause the schedule {pause}: it will insert no jobs", yes=yes)
        if not run_with_retries(engine, lambda session: listed.pause(session, pause)):
            _tell_unchanged(f"the schedule {pause} was paused already")
    if resume is not None:
        ask(f"resume the schedule {resume}: it will insert jobs again", yes=yes)
        if not run_with_retries(engine, lambda session: listed.resume(session, resume)):
            _tell_unchanged(f"the schedule {resume} was not paused")
    if run is not None:
        ask(f"insert a job of the schedule {run} into {queue_name(queue)}", yes=yes)
        run_with_retries(engine, lambda session: listed.run_now(session, run, queue))


def _tell_unchanged(what: str) -> None:
    click.echo(f"{what}: nothing has changed", err=True)  # what is printed may be JSON


def as_data(info: ScheduleInfo) -> dict[str, Any]:
    """Return what --json prints for a schedule."""
    return {name: _plain(value) for name, value in vars(info).items()}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def schedules_table(infos: Iterable[ScheduleInfo]) -> Table:
    """Lay out the schedules by name."""
    table = Table("schedule", "queue", "times", "next (UTC)", "last (UTC)", "state")
    for info in infos:
        texts = (info.name, info.queue, f"{info.cron} {info.timezone}")
        times = (_time(info.next_tick), _time(info.last_tick))
        table.add_row(*map(harmless, texts), *times, harmless(_state(info)))
    return table


def _time(value: datetime | None) -> str:
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def _state(info: ScheduleInfo) -> str:
    words = ["paused" if info.paused else "runs"]
    if info.skipped_from is not None:
        words.append(f"missed {_time(info.skipped_from)} until {_time(info.skipped_to)} UTC")
    if info.last_error is not None:
        words.append(f"failed: {first_line(info.last_error)}")
    return ", ".join(words)
