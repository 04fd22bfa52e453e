"""``work``: a worker over a queue of the user's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from sqlalchemy import inspect

from ..mapping import word_of
from ..queue import JobQueue
from ..status import CANCELLED, FAILED
from ..worker import REAP_EVERY, Cancel, Outcome, Worker
from .databases import open_engine, require_table, url_option
from .loading import load_handler, load_queue
from .reap import seconds


@click.command()
@click.argument("queue", metavar="MODULE:QUEUE")
@click.argument("handler", metavar="HANDLER")
@url_option
@click.option("--drain", is_flag=True, help="Stop when the queue is empty.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Pause between two batches.",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option(
    "--delete/--keep", default=None, help="What becomes of done jobs.  [default: as the model says]"
)
@click.option("--owner", metavar="NAME", help="Who claims.  [default: this process]")
@click.option(
    "--max-runtime",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long a job may run before others take it.  [default: as long as it likes]",
)
@click.option(
    "--reap-every",
    type=click.FloatRange(min=0),
    default=REAP_EVERY.total_seconds(),
    show_default=True,
    metavar="SECONDS",
    help="How often to take back the claims of the dead; 0: never.",
)
def work(
    queue: str,
    handler: str,
    url: str,
    drain: bool,
    interval: float,
    batch: int,
    delete: bool | None,
    owner: str | None,
    max_runtime: float | None,
    reap_every: float,
) -> None:
    """Claim jobs of MODULE:QUEUE, and call HANDLER with each.

    MODULE:QUEUE names a JobQueue or a mapped class, HANDLER is MODULE:FUNCTION.
    SIGTERM and Ctrl-C finish the running job, and release the rest.
    """
    found = load_queue(queue)
    function = load_handler(handler)
    engine = open_engine(url)
    require_table(engine, found.mapping.table)
    worker = Worker(
        engine,
        found,
        function,
        owner=owner,
        limit=batch,
        delete=delete,
        drain=drain,
        interval=timedelta(seconds=interval),
        max_runtime=seconds(max_runtime),
        reap_every=seconds(reap_every or None),
        on_outcome=lambda job, outcome: click.echo(f"{key_of(job)} {word(found, job, outcome)}"),
    )
    with worker.stopping_on_signals():
        worker.run()
    click.echo("stopped" if worker.stopping else "all done")


def key_of(job: Any) -> str:
    """Return the primary key as text."""
    return ", ".join(map(str, inspect(job).identity))


def word(queue: JobQueue[Any], job: Any, outcome: Outcome) -> str:
    """Say what became of a job, in the table's own words."""
    mapping = queue.mapping
    if outcome is None:
        return word_of(mapping, queue.then)
    if isinstance(outcome, Cancel):
        return mapping.word(CANCELLED)
    again = " (will be tried again)" if attempts_remain(queue, job) else ""
    return f"{mapping.word(FAILED)}{again}"


def attempts_remain(queue: JobQueue[Any], job: Any) -> bool:
    """Tell whether a failed job is tried again; the claim has counted its attempt."""
    attributes = queue.mapping.attributes
    if "attempts" not in attributes:
        return False
    most = getattr(job, attributes["max_attempts"])
    return most is None or getattr(job, attributes["attempts"]) < most
