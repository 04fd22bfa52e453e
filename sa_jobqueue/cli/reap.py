"""``reap``: return the claims of dead owners to their queues, once or at intervals."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import click
from sqlalchemy.exc import OperationalError

from ..process import THREADS, first_signal_stops
from ..verbs.reap import ReapedJob
from .command import Place, command, seconds
from .printing import in_one_line, printable


@command(
    seconds("--lease", "The lease of owners of unknown state.  [default: the model's lease]"),
    seconds("--max-runtime", "Also reap older claims of the living; 0: all claims.", zero=True),
    seconds("--every", "Repeat after this pause, until SIGTERM or Ctrl-C."),
)
def reap(
    at: Place, lease: timedelta | None, max_runtime: timedelta | None, every: timedelta | None
) -> None:
    """Return claims of dead owners to their queues.

    The command also reaps claims whose lease has expired. For each owner it prints how many jobs
    it reaped, and why.

    The command never asks, since it is made for cron. It leaves the claims of owners that are
    alive, unless you give --max-runtime.
    """
    stop = THREADS.flag()
    with first_signal_stops(stop.set):
        jobs = _reap_all(at, stop, lease=lease, max_runtime=max_runtime)
        if every is None:
            failed = sum(job.failed for job in jobs)
            ends = f"{len(jobs) - failed:,} can be claimed again, {failed:,} failed"
            click.echo(ends if jobs else "nothing to reap")
            return
        while not stop.wait(every.total_seconds()):
            try:
                _reap_all(at, stop, lease=lease, max_runtime=max_runtime)
            except OperationalError as error:  # it worked before, so the server is away
                again = f"tried again in {every.total_seconds():g} s"
                click.echo(f"{again}: {in_one_line(error)}", err=True)
    click.echo("stopped")


def _reap_all(at: Place, stop: Any, **options: Any) -> list[ReapedJob]:
    """Reap claims, a transaction for each batch, until nothing is left; print whose they were."""
    jobs: list[ReapedJob] = []
    for queue in at.queues.values():
        more = True
        while more and not stop.is_set():
            reaped = at.write(partial(queue.reap, **options))
            jobs += reaped.jobs
            more = bool(reaped) and reaped.more
    failed = Counter((job.owner, job.reason) for job in jobs if job.failed)
    for (owner, reason), count in Counter((job.owner, job.reason) for job in jobs).items():
        lost = failed[owner, reason]
        failures = f", {lost:,} failed" if lost else ""
        click.echo(f"{count:,} of {printable(owner or 'nobody')}: {reason}{failures}")
    return jobs
