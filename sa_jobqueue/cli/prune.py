"""``prune``: delete finished jobs that are old enough, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine

from ..ages import duration_text
from ..model.queue_name import queue_name
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from ..verbs.manage import PRUNE_LIMIT
from .asking import ask, yes_option
from .engine import open_engine, require_table
from .options import assume_locks_option, json_option, queue_argument, seconds_option, url_option
from .stop_signals import StopSignals
from .targets import load_queue


@click.command()
@queue_argument
@url_option
@assume_locks_option
@seconds_option(
    "--older-than", required=True, help="Delete jobs that were finished longer ago than this."
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="WORD",
    help="Delete jobs with this final status. You can repeat it.  [default: completed jobs]",
)
@yes_option
@json_option
def prune(
    queue: str,
    url: str | None,
    older_than: timedelta,
    statuses: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Delete old finished jobs of MODULE:QUEUE.

    Each batch is a transaction of its own.
    """
    found = load_queue(queue)
    engine = open_engine(url)
    require_table(engine, found.mapping.table)
    which = " and ".join(statuses) or "completed"
    age = duration_text(older_than)
    ask(f"delete the {which} jobs of {queue_name(found)} that are older than {age}", yes=yes)
    with StopSignals() as stop:
        deleted = sum(batches(engine, found, stop, older_than, statuses or None))
    if as_json:
        click.echo(json.dumps({"queue": queue_name(found), "verb": "prune", "deleted": deleted}))
    else:
        click.echo(f"prune: {deleted:,} {'job' if deleted == 1 else 'jobs'}")


def batches(
    engine: Engine,
    queue: JobQueue[Any],
    stop: StopSignals,
    older_than: timedelta,
    statuses: tuple[str, ...] | None,
) -> Iterator[int]:
    """Delete batch after batch, until one is not full; yield how many jobs each had."""
    deleted = PRUNE_LIMIT
    while deleted == PRUNE_LIMIT and not stop.received:
        deleted = run_with_retries(
            engine, lambda session: queue.prune(session, older_than=older_than, statuses=statuses)
        )
        yield deleted
