"""``status``: how many jobs a queue has, and how long they wait."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.console import Console
from rich.table import Column, Table
from sqlalchemy.orm import Session

from ..queue import JobQueue
from ..verbs.stats import QueueStats, count_by_status, stats
from ..workflow import Step, Workflow
from .engine import EXAMPLE_URL, open_engine, require_table
from .options import assume_locks_option, url_option
from .targets import load_queue_or_workflow, load_target

EXAMPLE = "sa_jobqueue.cli.demo.model:Record"


@click.command()
@url_option
@assume_locks_option
@click.argument("queue", metavar="[MODULE:QUEUE]", default=EXAMPLE)
def status(url: str | None, queue: str) -> None:
    """Show how many jobs a queue has by status, and how long they wait.

    MODULE:QUEUE names a JobQueue, a workflow or a mapped class; the example model by default.
    Of a JobQueue only the jobs count that fulfil its criteria.
    """
    whole = not isinstance(load_target(queue), JobQueue | Step)
    found = load_queue_or_workflow(queue)
    if isinstance(found, Step):
        found = found.queue
    engine = open_engine(EXAMPLE_URL if url is None and queue == EXAMPLE else url)
    require_table(engine, found.mapping.table)
    with Session(engine) as session:
        if whole or isinstance(found, Workflow):  # all jobs of the class
            counts, described = count_by_status(session, found.entity), stats(session, found.entity)
        else:  # those that fulfil the queue's criteria
            counts, described = found.count_by_status(session), found.stats(session)
    console = Console()
    console.print(counts_table(found.mapping.table.fullname, counts))
    console.print(stats_table(described))


def counts_table(title: str, counts: dict[str, int]) -> Table:
    """Lay out the number of jobs by status, in the table's own words."""
    table = Table("status", Column("jobs", justify="right"), title=title)
    for word, count in counts.items():
        table.add_row(word, f"{count:,}")
    return table


def stats_table(stats: QueueStats) -> Table:
    """Lay out how many jobs wait, and how many each owner has claimed."""
    table = Table(Column(), Column(justify="right"), show_header=False)
    table.add_row("depth (due)", f"{stats.depth:,}")
    table.add_row("oldest waiting", _age_text(stats.oldest_waiting))
    table.add_row("scheduled for later", f"{stats.scheduled:,}")
    for owner, count in sorted(stats.claimed.items()):
        table.add_row(f"claimed by {owner}", f"{count:,}")
    return table


def _age_text(age: timedelta | None) -> str:
    return "-" if age is None else str(timedelta(seconds=round(age.total_seconds())))
