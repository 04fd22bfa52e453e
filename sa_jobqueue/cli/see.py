"""``status``, ``top`` and ``failed``: what queues hold, as a table of 80 columns or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy.exc import OperationalError

from ..ages import age_text
from ..counts import Listed, ListedJob, QueueStats, list_jobs, overview, why_incomplete
from ..model.columns import first_line
from ..model.keys import queue_name
from ..owners.alive import OwnerState
from ..process import THREADS, first_signal_stops
from ..steering import key_text
from .command import Place, command, json_option, number, seconds
from .database import shown_url
from .printing import in_one_line, print_json, print_table, printable, right, time_text


@command(json_option)
def status(at: Place, as_json: bool) -> None:
    """Count the jobs of queues.

    The command reads only indexes, and is fast on a big table. For one MODULE:QUEUE it also counts
    by status, and reads all rows; --json does not.
    """
    seen = _look(at)
    if as_json:
        print_json([_data(*named) for named in seen.items()])
        return
    (target, queue), *others = at.queues.items()
    if not others and target in at.targets:
        counts = at.read(queue.count_by_status)
        print_table("status", right("jobs"), rows=counts.items())
    Console().print(_overview_table(seen))
    for each in seen.values():
        if each.paused is not None:
            click.echo(pause_text(each.name, each.paused))


@command(seconds("--every", "The time between refreshes.", default=2.0))
def top(at: Place, every: timedelta) -> None:
    """Watch queues in the terminal until Ctrl-C."""
    seen: dict[str, QueueStats] = {}
    where, stop = shown_url(at.engine), THREADS.flag()
    with first_signal_stops(stop.set), Live(auto_refresh=False) as live:
        while True:
            try:
                seen, problem = _look(at), None
            except OperationalError as error:  # a server that is away is asked again
                problem = error
            live.update(picture(seen, where, problem), refresh=True)
            if stop.wait(every.total_seconds()):
                return


@command(number("--limit", "List at most N jobs.", default=20), json_option)
def failed(at: Place, limit: int, as_json: bool) -> None:
    """List failed jobs, the newest first.

    Without the index of failed jobs, which __queue_args__ = {"failed_index": True} declares, only
    the 10,000 rows with the largest keys are looked at.
    """
    found: list[tuple[str, ListedJob]] = []
    for queue in at.queues.values():
        jobs = at.read(partial(list_jobs, queue=queue, which=Listed.FAILED, limit=limit))
        incomplete = at.read(partial(why_incomplete, queue=queue))
        if incomplete is not None:
            click.echo(f"this list may lack jobs: {incomplete}", err=True)
        found += [(queue_name(queue), job) for job in jobs]
    if as_json:
        names = ("queue", "key", "job", "attempts", "failed_at", "last_error")
        values = (
            (it, job.key, job.text, job.attempts, job.owner_date, job.last_error)
            for it, job in found
        )
        print_json([dict(zip(names, each, strict=True)) for each in values])
        return
    calls = ["job"] if any(job.text for _, job in found) else []  # of tasks alone
    rows = (
        (
            *(name, key_text(job.key), *([job.text] if calls else [])),
            *(job.attempts, job.owner_date, first_line(job.last_error)),
        )
        for name, job in found
    )
    columns: tuple[Any, ...] = (
        "queue",
        "key",
        *calls,
        right("attempts"),
        "failed at (UTC)",
        "error",
    )
    print_table(*columns, rows=rows)


def _look(at: Place) -> dict[str, QueueStats]:
    return dict(zip(at.queues, at.read(partial(overview, queues=at.queues.values())), strict=True))


def picture(
    queues: Mapping[str, QueueStats], where: str, error: OperationalError | None = None
) -> RenderableType:
    """Lay out a refresh: where and when, the queues, and what is wrong."""
    head = Text(f"{datetime.now(UTC):%H:%M:%S} UTC  {where}", style="dim", no_wrap=True)
    head.overflow = "ellipsis"
    parts: list[RenderableType] = [head, _overview_table(queues)]
    if error is not None:
        parts.append(f"[red]not read, tried again:[/] {escape(in_one_line(error))}")
    return Group(*parts)


def _data(target: str, seen: QueueStats) -> dict[str, Any]:
    """Return a queue as JSON has it: null where nobody knows."""
    states = [worker.state for worker in seen.workers or ()]
    workers = {state.name.lower(): states.count(state) for state in OwnerState}
    return {
        "target": target,
        "queue": seen.name,
        "due": seen.due,
        "oldest_seconds": seen.oldest,
        "next_due": seen.next_due,
        "claimed": seen.claimed,
        "failed": seen.failed,
        "cancelled": seen.cancelled,
        "finished_per_second": seen.rate,
        "paused": seen.paused,
        "workers": None if seen.workers is None else workers,
    }


def _overview_table(queues: Mapping[str, QueueStats]) -> Table:
    """Lay out queues by the names of their targets."""
    names = ("due", "oldest", "next", "claimed", "failed", "done/s", "workers")
    table = Table(
        Column("queue", overflow="ellipsis"),  # the only one that rich may make narrower
        *(Column(name, justify="right", no_wrap=True) for name in names),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for target, seen in queues.items():
        table.add_row(
            escape(target.rpartition(":")[2]),
            str(seen.due),
            age_text(seen.oldest),
            age_text(None if seen.next_due is None else seen.next_due - datetime.now(UTC)),
            str(seen.claimed),
            "not indexed" if seen.failed is None else str(seen.failed),
            "-" if seen.rate is None else f"{seen.rate:,.{0 if seen.rate >= 10 else 2}f}",
            _workers_text(seen),
        )
    return table


def _workers_text(seen: QueueStats) -> str:
    """Count the workers, those that are dead apart; say that they rest."""
    if seen.workers is None:
        return "-"
    dead = sum(worker.state is OwnerState.DEAD for worker in seen.workers)
    words = [f"{len(seen.workers) - dead}"]
    words += [f"[red]{dead} dead[/]"] if dead else []
    stuck = sum(worker.state is OwnerState.STUCK for worker in seen.workers)
    words += [f"[red]{stuck} stuck[/]"] if stuck else []
    words += ["[yellow]paused[/]"] if seen.paused else []
    return " ".join(words)


def pause_text(queue: str, since: datetime) -> str:
    """Say that a queue is paused, by its name."""
    return f"{printable(queue)} is paused since {time_text(since.astimezone(UTC))} UTC"
