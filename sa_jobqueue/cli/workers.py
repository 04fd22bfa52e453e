"""``workers``: which workers are there, and whether they are alive."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Column, Table
from sqlalchemy.orm import Session

from ..control import Pause, WorkerInfo, paused
from ..control import workers as list_workers
from .harmless import harmless
from .options import assume_locks_option, json_option, queue_argument, url_option
from .overview_view import pause_text
from .pause import open_control
from .targets import load_queue


@click.command()
@queue_argument
@url_option
@assume_locks_option
@json_option
def workers(queue: str, url: str | None, as_json: bool) -> None:
    """List workers and paused queues.

    They are those of the application that MODULE:QUEUE belongs to.
    """
    engine, tables = open_control(url, load_queue(queue))
    with Session(engine) as session:
        found, pauses = list_workers(session, tables=tables), paused(session, tables=tables)
    if as_json:
        click.echo(json.dumps(as_data(found, pauses), indent=2))
        return
    console = Console()
    console.print(workers_table(found))
    for pause in pauses:
        console.print(pause_text(pause.queue, pause.since))


def as_data(workers: Iterable[WorkerInfo], pauses: Iterable[Pause]) -> dict[str, object]:
    """Return what --json prints."""
    return {
        "workers": [
            {
                "name": worker.name,
                "host": worker.host,
                "pid": worker.pid,
                "queues": list(worker.queues),
                "since": worker.since.isoformat(),
                "seen_at": worker.seen_at.isoformat(),
                "jobs": worker.jobs,
                "state": worker.state.name.lower(),
            }
            for worker in workers
        ],
        "paused": [{"queue": pause.queue, "since": pause.since.isoformat()} for pause in pauses],
    }


def workers_table(workers: Iterable[WorkerInfo]) -> Table:
    """Lay out the workers, the oldest first."""
    jobs = Column("jobs", justify="right")
    table = Table("worker", "state", "host", "pid", "queues", jobs, "seen (UTC)")
    for worker in workers:
        table.add_row(
            harmless(worker.name),
            worker.state.name.lower(),
            harmless(worker.host),
            str(worker.pid),
            harmless(", ".join(worker.queues)),
            f"{worker.jobs:,}",
            f"{worker.seen_at:%Y-%m-%d %H:%M:%S}",
        )
    return table
