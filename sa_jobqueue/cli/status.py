"""``status``: how many jobs a queue has, and how long they wait."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Column, Table
from sqlalchemy.orm import Session

from ..counts import overview
from ..counts.stats import count_by_status
from ..queue import JobQueue
from ..workflow import Step, Workflow
from .engine import EXAMPLE_URL, open_engine, require_table
from .options import assume_locks_option, json_option, url_option
from .overview_view import as_data, overview_table, pause_text
from .targets import load_queue_or_workflow, load_queues, load_target

EXAMPLE = "sa_jobqueue.cli.demo:Record"


@click.command()
@url_option
@assume_locks_option
@json_option
@click.argument("queues", metavar="[MODULE[:QUEUE]]...", nargs=-1)
def status(url: str | None, queues: tuple[str, ...], as_json: bool) -> None:
    """Count the jobs of a queue by status.

    MODULE:QUEUE names a JobQueue, a workflow or a mapped class. Without it the command shows the
    table of the demo. A JobQueue counts only the jobs that fulfil its criteria.

    For one queue the command reads all rows. For several queues, for a whole MODULE, and with
    --json it reads only indexes, and is fast on a big table.
    """
    if as_json or len(queues) > 1 or ":" not in (*queues, EXAMPLE)[0]:
        show_overview(url, queues or (EXAMPLE,), as_json=as_json)
    else:
        show_counts(url, *queues)


def show_overview(url: str | None, targets: tuple[str, ...], *, as_json: bool) -> None:
    """Print a line for each queue, or JSON."""
    queues = load_queues(targets)
    engine = open_engine(EXAMPLE_URL if url is None and targets == (EXAMPLE,) else url)
    for queue in queues.values():
        require_table(engine, queue.mapping.table)
    with Session(engine) as session:
        seen = dict(zip(queues, overview(session, queues.values()), strict=True))
    if as_json:
        click.echo(json.dumps([as_data(*named) for named in seen.items()], indent=2))
    else:
        Console().print(overview_table(seen))


def show_counts(url: str | None, queue: str = EXAMPLE) -> None:
    """Print the exact numbers of one queue; all rows of the class are read."""
    whole = not isinstance(load_target(queue), JobQueue | Step)
    found = load_queue_or_workflow(queue)
    if isinstance(found, Step):
        found = found.queue
    engine = open_engine(EXAMPLE_URL if url is None and queue == EXAMPLE else url)
    require_table(engine, found.mapping.table)
    queues = load_queues([queue])
    with Session(engine) as session:
        if whole or isinstance(found, Workflow):  # all jobs of the class
            counts = count_by_status(session, found.entity)
        else:  # those that fulfil the queue's criteria
            counts = found.count_by_status(session)
        seen = dict(zip(queues, overview(session, queues.values()), strict=True))
    console = Console()
    console.print(counts_table(found.mapping.table.fullname, counts))
    console.print(overview_table(seen))
    for each in seen.values():
        if each.paused is not None:
            console.print(pause_text(each.name, each.paused))


def counts_table(title: str, counts: dict[str, int]) -> Table:
    """Lay out the number of jobs by status, in the table's own words."""
    table = Table("status", Column("jobs", justify="right"), title=title)
    for word, count in counts.items():
        table.add_row(word, f"{count:,}")
    return table
