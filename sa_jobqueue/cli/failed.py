"""``failed``: the failed jobs of a queue, with their errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from sqlalchemy.orm import Session

from ..counts import Listed, ListedJob, list_jobs, why_incomplete
from ..model.last_error import first_line
from ..steering import key_text
from .engine import open_engine, require_table
from .harmless import harmless
from .options import ROWS, assume_locks_option, json_option, queue_argument, url_option
from .targets import load_queue


@click.command()
@queue_argument
@url_option
@assume_locks_option
@click.option(
    "--limit",
    type=ROWS,
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N jobs.",
)
@json_option
def failed(queue: str, url: str | None, limit: int, as_json: bool) -> None:
    """List the failed jobs of MODULE:QUEUE, the newest first.

    Without the index of failed jobs, which __queue_args__ = {"failed_index": True} declares, only
    the 10,000 rows with the largest keys are looked at.
    """
    found = load_queue(queue)
    engine = open_engine(url)
    require_table(engine, found.mapping.table)
    with Session(engine) as session:
        jobs = list_jobs(session, found, Listed.FAILED, limit=limit)
        incomplete = why_incomplete(session, found)
    if incomplete is not None:
        click.echo(f"this list may lack jobs: {incomplete}", err=True)
    if as_json:
        click.echo(json.dumps([as_data(job) for job in jobs], indent=2, default=str))
    else:
        Console().print(failed_table(jobs))


def as_data(job: ListedJob) -> dict[str, Any]:
    """Return what --json prints for a job."""
    return {
        "key": list(job.key),
        "attempts": job.attempts,
        "failed_at": job.owner_date and job.owner_date.isoformat(),
        "last_error": job.last_error,
    }


def failed_table(jobs: Iterable[ListedJob]) -> Table:
    """Lay out jobs, each with the first line of its error."""
    table = Table("key", Column("attempts", justify="right"), "failed at (UTC)", "error")
    for job in jobs:
        failed_at = f"{job.owner_date:%Y-%m-%d %H:%M:%S}"
        attempts = "-" if job.attempts is None else f"{job.attempts:,}"
        error = first_line(job.last_error)
        table.add_row(harmless(key_text(job.key)), attempts, failed_at, harmless(error))
    return table
