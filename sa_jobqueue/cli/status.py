"""``status``: how many jobs queues have, and how long they wait."""

from __future__ import annotations

from functools import partial

import click
from rich.console import Console

from ..counts import overview
from .command import Place, command, json_option
from .overview_view import as_data, overview_table, pause_text
from .printing import print_json, print_table, right


@command(json_option)
def status(at: Place, as_json: bool) -> None:
    """Count the jobs of queues.

    The command reads only indexes, and is fast on a big table. For one MODULE:QUEUE it also counts
    by status, and reads all rows; --json does not.
    """
    seen = dict(zip(at.queues, at.read(partial(overview, queues=at.queues.values())), strict=True))
    if as_json:
        print_json([as_data(*named) for named in seen.items()])
        return
    (target, queue), *others = at.queues.items()
    if not others and target in at.targets:
        counts = at.read(queue.count_by_status)
        rows = ((word, f"{count:,}") for word, count in counts.items())
        print_table("status", right("jobs"), rows=rows)
    Console().print(overview_table(seen))
    for each in seen.values():
        if each.paused is not None:
            click.echo(pause_text(each.name, each.paused))
