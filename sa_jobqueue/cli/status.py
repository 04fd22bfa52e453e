"""``status``: how many jobs a queue has, and how long they wait."""

from __future__ import annotations

from functools import partial

import click
from rich.console import Console
from rich.table import Column, Table

from ..ages import age_text
from ..overview import overview
from ..verbs.stats import QueueStats
from .command import Place, command, json_option
from .overview_view import as_data, overview_table, pause_text
from .printing import harmless, print_json


@command(json_option)
def status(at: Place, as_json: bool) -> None:
    """Count the jobs of queues.

    A JobQueue counts only the jobs that fulfil its criteria.

    For one MODULE:QUEUE the command counts by status and owner, and reads all rows. For several
    queues, for a whole MODULE, and with --json it reads only indexes, and is fast on a big table.
    """
    seen = at.read(partial(overview, queues=at.queues.values()))
    (target, queue), *others = at.queues.items()
    if as_json:
        print_json([as_data(*named) for named in zip(at.queues, seen, strict=True)])
    elif others or target not in at.targets:
        Console().print(overview_table(dict(zip(at.queues, seen, strict=True))))
    else:
        Console().print(counts_table(queue.mapping.table.fullname, at.read(queue.count_by_status)))
        Console().print(stats_table(at.read(queue.stats)))
        for each in seen:
            if each.paused is not None:
                click.echo(pause_text(each.name, each.paused))


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
    table.add_row("oldest waiting", age_text(stats.oldest_waiting))
    table.add_row("scheduled for later", f"{stats.scheduled:,}")
    for owner, count in sorted(stats.claimed.items()):
        table.add_row(harmless(f"claimed by {owner}"), f"{count:,}")
    return table
