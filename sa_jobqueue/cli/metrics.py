"""``metrics``: queues for Prometheus, and the number of workers that an autoscaler asks for."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..counts import overview, workers_needed
from ..model.queue_name import queue_name
from ..queue import JobQueue
from .engine import open_engine, require_table
from .options import assume_locks_option, seconds_option, targets_argument, url_option
from .reap import pause
from .stop_signals import StopSignals
from .targets import load_queues

MISSING = "prometheus_client is missing: pip install 'sa_jobqueue[prometheus]'"

#: Names the folder where processes count; the name is that of prometheus_client.
COUNTS = "PROMETHEUS_MULTIPROC_DIR"


@click.command()
@targets_argument
@url_option
@assume_locks_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=9100, show_default=True)
@seconds_option(
    "--drain-in",
    zero=False,
    help="Print, as JSON, how many workers can finish the due jobs within this time, and end.",
)
def metrics(
    queues: tuple[str, ...], url: str | None, host: str, port: int, drain_in: timedelta | None
) -> None:
    """Serve metrics of queues to Prometheus until Ctrl-C.

    MODULE stands for all queues of a module. Each scrape reads the depth and age of the queues and
    their workers from the database, by indexes alone. If PROMETHEUS_MULTIPROC_DIR names a folder,
    each scrape also has what other processes count there.
    """
    found = load_queues(queues)
    engine = open_engine(url)
    for queue in found.values():
        require_table(engine, queue.mapping.table)
    if drain_in is None:
        serve(engine, found, host, port)
    else:
        click.echo(json.dumps(needed(engine, found, drain_in)))


def needed(
    engine: Engine, queues: dict[str, JobQueue[Any]], within: timedelta
) -> dict[str, int | None]:
    """Return the workers that each queue needs; null where nobody knows."""
    with Session(engine) as session:
        found = overview(session, queues.values())
    return {
        target: workers_needed(seen, within) for target, seen in zip(queues, found, strict=True)
    }


def by_label(queues: dict[str, JobQueue[Any]]) -> dict[str, JobQueue[Any]]:
    """Return the queues by their names, as count_events has them; by targets if these are equal."""
    shared = Counter(map(queue_name, queues.values()))
    return {
        target if shared[queue_name(queue)] > 1 else queue_name(queue): queue
        for target, queue in queues.items()
    }


def serve(engine: Engine, queues: dict[str, JobQueue[Any]], host: str, port: int) -> None:
    """Serve metrics until a signal comes."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.multiprocess import MultiProcessCollector
    except ImportError as error:
        raise click.ClickException(MISSING) from error
    from ..prometheus import QueueCollector

    registry = CollectorRegistry()
    registry.register(QueueCollector(engine, by_label(queues)))
    if COUNTS in os.environ:
        try:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # theirs
        except ValueError as error:
            raise click.ClickException(f"{COUNTS}={os.environ[COUNTS]} is no folder") from error
    with StopSignals() as stop:
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
        click.echo(f"http://{host}:{port}/metrics")
        while not pause(3600, stop):
            pass
        server.shutdown()
        thread.join()
