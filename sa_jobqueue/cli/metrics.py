"""``metrics``: queues for Prometheus, and the number of workers that an autoscaler asks for."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import click
from sqlalchemy import Engine

from ..counts import overview, workers_needed
from ..model.keys import queue_name
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue
from .command import Place, command, host_option, number, seconds
from .printing import print_json

MISSING = "prometheus_client is missing: pip install 'sa_jobqueue[prometheus]'"

#: Names the folder where processes count; the name is that of prometheus_client.
COUNTS = "PROMETHEUS_MULTIPROC_DIR"


@command(
    host_option,
    number("--port", "The port to listen on.", most=65535, default=9100),
    seconds("--drain-in", "Print, as JSON, how many workers finish the due jobs in this time."),
    threads=True,
)
def metrics(at: Place, host: str, port: int, drain_in: timedelta | None) -> None:
    """Serve metrics of queues to Prometheus until Ctrl-C.

    Each scrape reads the depth and age of the queues and their workers from the database, by
    indexes alone. If PROMETHEUS_MULTIPROC_DIR names a folder, each scrape also has what other
    processes count there.
    """
    if drain_in is None:
        serve(at.engine, at.queues, host, port)
        return
    seen = at.read(partial(overview, queues=at.queues.values()))
    needed = (workers_needed(each, drain_in) for each in seen)
    print_json(dict(zip(at.queues, needed, strict=True)))


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
    stop = THREADS.flag()
    with first_signal_stops(stop.set):
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
        click.echo(f"http://{host}:{port}/metrics")
        stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()
