"""``top``: a live view of queues; without a terminal a line of JSON for each refresh."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count as counted
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from ..counts import QueueStats, overview
from ..process.runtime import THREADS, Flag
from ..process.signals import first_signal_stops
from ..queue import JobQueue
from .command import Place, command, number, seconds
from .database import shown_url
from .overview_view import as_data, overview_table
from .printing import in_one_line

#: What a refresh has found: the queues by their targets, or why they could not be read.
Seen = dict[str, QueueStats] | OperationalError


@command(
    seconds("--every", "The time between refreshes.", default=2.0),
    number("--count", "End after N refreshes."),
)
def top(at: Place, every: timedelta, count: int | None) -> None:
    """Watch queues in the terminal until Ctrl-C.

    If the output is not a terminal, the command prints a line of JSON for each refresh.
    """
    console, stop = Console(), THREADS.flag()
    with first_signal_stops(stop.set):
        refreshes = seen_again(at.engine, at.queues, stop, every, count)
        if console.is_terminal:
            show_live(refreshes, console, shown_url(at.engine))
        else:
            print_lines(refreshes)


def seen_again(
    engine: Engine,
    queues: Mapping[str, JobQueue[Any]],
    stop: Flag,
    every: timedelta,
    count: int | None,
) -> Iterator[Seen]:
    """Read the queues again and again; a server that is away is asked again."""
    for turn in counted(1):
        yield seen_now(engine, queues)
        if turn == count or stop.wait(every.total_seconds()):
            return


def seen_now(engine: Engine, queues: Mapping[str, JobQueue[Any]]) -> Seen:
    """Read the queues, or return the error of a server that is away."""
    try:
        with Session(engine) as session:
            return dict(zip(queues, overview(session, queues.values()), strict=True))
    except OperationalError as error:
        return error


def show_live(refreshes: Iterator[Seen], console: Console, where: str) -> None:
    """Draw the queues on the terminal's screen, and leave the last picture there."""
    known: dict[str, QueueStats] = {}
    with Live(console=console, auto_refresh=False) as live:
        for seen in refreshes:
            error = seen if isinstance(seen, OperationalError) else None
            known = known if isinstance(seen, OperationalError) else seen
            live.update(picture(known, where, error), refresh=True)


def picture(
    queues: Mapping[str, QueueStats], where: str, error: OperationalError | None = None
) -> RenderableType:
    """Lay out a refresh: where and when, the queues, and what is wrong."""
    head = Text(f"{datetime.now(UTC):%H:%M:%S} UTC  {where}", style="dim", no_wrap=True)
    head.overflow = "ellipsis"
    parts: list[RenderableType] = [head, overview_table(queues)]
    if error is not None:
        parts.append(f"[red]not read, tried again:[/] {escape(in_one_line(error))}")
    return Group(*parts)


def print_lines(refreshes: Iterator[Seen]) -> None:
    """Print a line of JSON for each refresh."""
    for seen in refreshes:
        click.echo(json.dumps({"at": datetime.now(UTC).isoformat(), **_as_line(seen)}))


def _as_line(seen: Seen) -> dict[str, Any]:
    if isinstance(seen, OperationalError):
        return {"error": in_one_line(seen)}
    return {"queues": [as_data(target, queue) for target, queue in seen.items()]}
