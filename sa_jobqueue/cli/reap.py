"""``reap``: return the claims of dead owners to the queue, once or at intervals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from ..verbs.reap import ReapedJob
from ..workflow import Step, Workflow
from .engine import open_engine, require_table
from .errors import in_one_line
from .options import ROWS, assume_locks_option, queue_argument, seconds_option, url_option
from .stop_signals import StopSignals
from .targets import load_queue_or_workflow

#: How often a pause checks whether it should end, in seconds.
LOOK_EVERY = 0.1


@click.command()
@queue_argument
@url_option
@assume_locks_option
@seconds_option(
    "--lease",
    zero=False,
    help="The lease of owners whose state is unknown.  [default: the model's lease]",
)
@seconds_option(
    "--max-runtime",
    help="Also reap claims older than this whose owners are alive; 0: all claims.",
)
@click.option(
    "--limit",
    type=ROWS,
    metavar="N",
    help="Reap at most N claims in a transaction.",
)
@seconds_option(
    "--every",
    zero=False,
    help="Repeat after this pause, until SIGTERM or Ctrl-C.",
)
def reap(
    queue: str,
    url: str | None,
    lease: timedelta | None,
    max_runtime: timedelta | None,
    limit: int | None,
    every: timedelta | None,
) -> None:
    """Return claims of dead owners to the queue MODULE:QUEUE.

    The command also reaps claims whose lease has expired.

    MODULE:QUEUE names a JobQueue, a workflow or a mapped class. For each owner the command
    prints how many jobs it reaped, and why.

    The command never asks, since it is made for cron. It leaves the claims of owners that are
    alive, unless you give --max-runtime.
    """
    found = load_reapable(queue)
    engine = open_engine(url)
    require_table(engine, found.mapping.table)
    options = {"lease": lease, "max_runtime": max_runtime, "limit": limit}
    with StopSignals() as stop:
        jobs = reap_all(engine, found, stop, **options)
        print_owners(jobs)
        if every is None:
            click.echo(summary(jobs))
            return
        while not pause(every.total_seconds(), stop):
            try:
                print_owners(reap_all(engine, found, stop, **options))
            except OperationalError as error:  # it worked before, so the server is away
                again = f"tried again in {every.total_seconds():g} s"
                click.echo(f"{again}: {in_one_line(error)}", err=True)
    click.echo("stopped")


def load_reapable(target: str) -> JobQueue[Any] | Workflow[Any]:
    """Import a queue, or a workflow, all of whose steps are reaped."""
    found = load_queue_or_workflow(target)
    return found.queue if isinstance(found, Step) else found


def reap_all(
    engine: Engine, queue: JobQueue[Any] | Workflow[Any], stop: StopSignals, **options: Any
) -> list[ReapedJob]:
    """Reap claims, a transaction for each batch, until nothing is left."""
    jobs: list[ReapedJob] = []
    more = True
    while more and not stop.received:
        reaped = run_with_retries(engine, lambda session: queue.reap(session, **options))
        jobs += reaped.jobs
        more = bool(reaped) and reaped.more
    return jobs


def print_owners(jobs: Iterable[ReapedJob]) -> None:
    """Print how many jobs of each owner were reaped, why, and how many have failed."""
    jobs = list(jobs)
    failed = Counter((job.owner, job.reason) for job in jobs if job.failed)
    for (owner, reason), count in Counter((job.owner, job.reason) for job in jobs).items():
        failures = failed[owner, reason]
        click.echo(
            f"{count:,} of {owner or 'nobody'}: {reason}"
            + (f", {failures:,} failed" if failures else "")
        )


def summary(jobs: list[ReapedJob]) -> str:
    """Return what became of all the jobs."""
    failed = sum(job.failed for job in jobs)
    if not jobs:
        return "nothing to reap"
    return f"{len(jobs) - failed:,} can be claimed again, {failed:,} failed"


def pause(length: float, stop: StopSignals) -> bool:
    """Wait for so many seconds, or until a signal; tell whether a signal was received."""
    end = time.monotonic() + length
    while not stop.received and (left := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_EVERY, left))
    return stop.received
