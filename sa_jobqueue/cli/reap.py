"""``reap``: take back the claims of the dead, once or now and then."""

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
from .databases import open_engine, require_table, url_option
from .errors import in_one_line
from .importing import load_work
from .stopping import Stopping

#: How often a pause looks whether it should end, in seconds.
LOOK_EVERY = 0.1


@click.command()
@click.argument("queue", metavar="MODULE:QUEUE")
@url_option
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Leave claims of unknown owners alone for so long.  [default: as the model says]",
)
@click.option(
    "--max-runtime",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Take back all claims older than this, those of living owners too; 0 takes all.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Claims in one transaction.")
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Do it again and again, with such a pause, until SIGTERM or Ctrl-C.",
)
def reap(
    queue: str,
    url: str,
    lease: float | None,
    max_runtime: float | None,
    limit: int | None,
    every: float | None,
) -> None:
    """Take back claims of MODULE:QUEUE whose owners are dead, or gone for too long.

    MODULE:QUEUE names a JobQueue, a workflow or a mapped class. Says how many jobs of whom were
    taken back, and why.
    """
    found = load_reapable(queue)
    engine = open_engine(url)
    require_table(engine, found.mapping.table)
    how = {"lease": seconds(lease), "max_runtime": seconds(max_runtime), "limit": limit}
    with Stopping() as stopping:
        jobs = reap_all(engine, found, stopping, **how)
        tell(jobs)
        if every is None:
            click.echo(summary(jobs))
            return
        while not pause(every, stopping):
            try:
                tell(reap_all(engine, found, stopping, **how))
            except OperationalError as error:  # it has worked before: the server is away
                click.echo(f"tried again in {every:g} s: {in_one_line(error)}", err=True)
    click.echo("stopped")


def load_reapable(place: str) -> JobQueue[Any] | Workflow[Any]:
    """Return what is reaped: of a workflow every step."""
    found = load_work(place)
    return found.queue if isinstance(found, Step) else found


def seconds(number: float | None) -> timedelta | None:
    """Return a duration as it was given on the command line."""
    return None if number is None else timedelta(seconds=number)


def reap_all(
    engine: Engine, queue: JobQueue[Any] | Workflow[Any], stopping: Stopping, **how: Any
) -> list[ReapedJob]:
    """Take back claims, a transaction for each batch, until nothing is left."""
    jobs: list[ReapedJob] = []
    more = True
    while more and not stopping:
        reaped = run_with_retries(engine, lambda session: queue.reap(session, **how))
        jobs += reaped.jobs
        more = bool(reaped) and reaped.more
    return jobs


def tell(jobs: Iterable[ReapedJob]) -> None:
    """Say how many jobs of each owner were taken back, why, and how many have failed."""
    jobs = list(jobs)
    failed = Counter((job.owner, job.reason) for job in jobs if job.failed)
    for whose, count in Counter((job.owner, job.reason) for job in jobs).items():
        owner, reason = whose
        ended = f", {failed[whose]:,} failed" if failed[whose] else ""
        click.echo(f"{count:,} of {owner or 'nobody'}: {reason}{ended}")


def summary(jobs: list[ReapedJob]) -> str:
    """Say what became of all of them."""
    failed = sum(job.failed for job in jobs)
    if not jobs:
        return "nothing to take back"
    return f"{len(jobs) - failed:,} can be claimed again, {failed:,} failed"


def pause(length: float, stopping: Stopping) -> bool:
    """Wait, but not when asked to stop; tell whether we were."""
    end = time.monotonic() + length
    while not stopping and (left := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_EVERY, left))
    return bool(stopping)
