"""``failed``: the failed jobs of queues, with their errors."""

from __future__ import annotations

from functools import partial

import click

from ..counts import Listed, ListedJob, list_jobs, why_incomplete
from ..model.last_error import first_line
from ..model.queue_name import queue_name
from ..steering import key_text
from .command import Place, command, json_option, number
from .printing import print_json, print_table, right, time_text


@command(number("--limit", "List at most N jobs.", default=20), json_option)
def failed(at: Place, limit: int, as_json: bool) -> None:
    """List failed jobs, the newest first.

    Without the index of failed jobs, which __queue_args__ = {"failed_index": True} declares, only
    the 10,000 rows with the largest keys are looked at.
    """
    found: list[tuple[str, ListedJob]] = []
    for queue in at.queues.values():
        jobs = at.read(partial(list_jobs, queue=queue, which=Listed.FAILED, limit=limit))
        incomplete = at.read(partial(why_incomplete, queue=queue))
        if incomplete is not None:
            click.echo(f"this list may lack jobs: {incomplete}", err=True)
        found += [(queue_name(queue), job) for job in jobs]
    if as_json:
        print_json([{"queue": name, **_data(job)} for name, job in found])
        return
    rows = (
        (
            *(name, key_text(job.key), "-" if job.attempts is None else f"{job.attempts:,}"),
            *(time_text(job.owner_date), first_line(job.last_error)),
        )
        for name, job in found
    )
    print_table("queue", "key", right("attempts"), "failed at (UTC)", "error", rows=rows)


def _data(job: ListedJob) -> dict[str, object]:
    return {
        "key": list(job.key),
        "attempts": job.attempts,
        "failed_at": job.owner_date,
        "last_error": job.last_error,
    }
