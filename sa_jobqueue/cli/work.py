"""``work``: a worker over a queue, or over steps of a workflow, of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import inspect

from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, FAILED
from ..queue import JobQueue
from ..worker import REAP_EVERY, Cancel, Lane, Outcome, Worker
from ..workflow import Step, Workflow
from .databases import open_engine, require_table, url_option
from .importing import load_handler, load_work
from .reap import seconds


@click.command()
@click.argument("queue", metavar="MODULE:QUEUE")
@click.argument("handler", metavar="[HANDLER]", required=False)
@url_option
@click.option(
    "--step",
    "names",
    multiple=True,
    metavar="NAME",
    help="Of a workflow only this step; may be given several times.  [default: all]",
)
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
    handler: str | None,
    url: str,
    names: tuple[str, ...],
    drain: bool,
    interval: float,
    batch: int,
    delete: bool | None,
    owner: str | None,
    max_runtime: float | None,
    reap_every: float,
) -> None:
    """Claim jobs of MODULE:QUEUE, and call HANDLER with each.

    MODULE:QUEUE names a JobQueue or a mapped class, HANDLER is MODULE:FUNCTION. Or
    MODULE:QUEUE names a workflow, whose steps have handlers of their own.
    SIGTERM and Ctrl-C finish the running job, and release the rest.
    """
    lanes, said = load_lanes(queue, handler, names)
    engine = open_engine(url)
    require_table(engine, lanes[0].queue.mapping.table)
    worker = Worker(
        engine,
        lanes,
        owner=owner,
        limit=batch,
        delete=delete,
        drain=drain,
        interval=timedelta(seconds=interval),
        max_runtime=seconds(max_runtime),
        reap_every=seconds(reap_every or None),
        on_outcome=lambda job, outcome: click.echo(f"{key_of(job)} {said(job, outcome)}"),
    )
    with worker.stopping_on_signals():
        worker.run()
    click.echo("stopped" if worker.stopping else "all done")


def load_lanes(
    place: str, handler: str | None, names: Sequence[str]
) -> tuple[Sequence[Lane[Any]], Callable[[Any, Outcome], str]]:
    """Return what is worked on, and what says what became of a job.

    Raises:
        ClickException: a queue without a handler, or a step that is not there.
    """
    found = load_work(place)
    if isinstance(found, JobQueue):
        if handler is None or names:
            raise click.UsageError(f"{place} is no workflow: it takes a HANDLER, and no --step")
        return [Lane(found, load_handler(handler))], lambda job, outcome: word(found, job, outcome)
    if handler is not None:
        raise click.UsageError(f"the steps of {place} have handlers of their own: give no HANDLER")
    steps = [found] if isinstance(found, Step) else steps_named(found, names)
    mapping = steps[0].queue.mapping
    return steps, lambda job, outcome: word_now(mapping, steps, job, outcome)


def steps_named(workflow: Workflow[Any], names: Sequence[str]) -> Sequence[Step[Any]]:
    """Return those of the steps that were named, in the workflow's order; all if none was."""
    known = [step.name for step in workflow]
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no step {name!r}; there are {', '.join(known)}")
    return [step for step in workflow if not names or step.name in names]


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
    again = AGAIN if attempts_remain(queue, job) else ""
    return f"{mapping.word(FAILED)}{again}"


AGAIN = " (will be tried again)"


def word_now(mapping: QueueMapping, steps: Sequence[Step[Any]], job: Any, outcome: Outcome) -> str:
    """Say what a job of a workflow is now: where it went, or where it is tried again."""
    status: str = getattr(job, mapping.attributes["status"])
    for step in steps:
        if status == step.during:  # the row was deleted, and shows nothing new
            return step.then
    failed = outcome is not None and not isinstance(outcome, str | Cancel)
    again = AGAIN if failed and status != mapping.word(FAILED) else ""
    return f"{status}{again}"


def attempts_remain(queue: JobQueue[Any], job: Any) -> bool:
    """Tell whether a failed job is tried again; the claim has counted its attempt."""
    attributes = queue.mapping.attributes
    if "attempts" not in attributes:
        return False
    most = getattr(job, attributes["max_attempts"])
    return most is None or getattr(job, attributes["attempts"]) < most
