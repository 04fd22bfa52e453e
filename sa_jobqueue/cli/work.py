"""``work``: a worker on a queue, or on steps of a workflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import click
from sqlalchemy import inspect

from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, FAILED
from ..queue import JobQueue
from ..worker import REAP_EVERY, Cancel, Lane, Outcome, Worker, lane_of
from ..workflow import Step, Workflow
from .engine import open_engine, require_table
from .options import assume_locks_option, queue_argument, seconds_option, url_option
from .targets import load_handler, load_queue_or_workflow

#: Behind the status of a failed job that is claimed again later.
AGAIN = " (will be tried again)"


@click.command()
@queue_argument
@click.argument("handler", metavar="[HANDLER]", required=False)
@url_option
@assume_locks_option
@click.option(
    "--step",
    "names",
    multiple=True,
    metavar="NAME",
    help="Work only on this step of a workflow; may be given several times.  [default: all]",
)
@click.option("--drain", is_flag=True, help="Stop when the queue is empty.")
@seconds_option("--interval", default=0, help="Pause between two batches.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Jobs in one claim.",
)
@click.option(
    "--delete/--keep",
    default=None,
    help="Delete done jobs, or keep them.  [default: as the model says]",
)
@click.option("--owner", metavar="NAME", help="The owner of the claims.  [default: this process]")
@seconds_option(
    "--max-runtime",
    zero=False,
    help="Other workers take back a job that runs for longer.  [default: no limit]",
)
@seconds_option(
    "--reap-every",
    default=REAP_EVERY.total_seconds(),
    show_default=True,
    help="How often to take back the claims of dead owners; 0: never.",
)
def work(
    queue: str,
    handler: str | None,
    url: str | None,
    names: tuple[str, ...],
    drain: bool,
    interval: timedelta,
    batch: int,
    delete: bool | None,
    owner: str | None,
    max_runtime: timedelta | None,
    reap_every: timedelta,
) -> None:
    """Claim jobs of MODULE:QUEUE, and call HANDLER with each.

    MODULE:QUEUE names a JobQueue with a handler, or without one, or a mapped class: then HANDLER
    is MODULE:FUNCTION. Or MODULE:QUEUE names a workflow, whose steps have handlers of their own.
    At SIGTERM or Ctrl-C the worker finishes the running job, and releases the others.
    """
    lanes, result_of = load_lanes(queue, handler, names)
    engine = open_engine(url)
    require_table(engine, lanes[0].queue.mapping.table)
    worker = Worker(
        engine,
        lanes,
        owner=owner,
        limit=batch,
        delete=delete,
        drain=drain,
        interval=interval,
        max_runtime=max_runtime,
        reap_every=reap_every or None,
        on_outcome=lambda job, outcome: click.echo(f"{key_of(job)} {result_of(job, outcome)}"),
    )
    with worker.stopping_on_signals():
        worker.run()
    click.echo("stopped" if worker.stopping else "all done")


def load_lanes(
    target: str, handler: str | None, names: Sequence[str]
) -> tuple[Sequence[Lane[Any]], Callable[[Any, Outcome], str]]:
    """Return the lanes of a worker, and a function that tells what became of a job.

    Raises:
        UsageError: a queue without a handler, a workflow with a handler, or an unknown step.
    """
    found = load_queue_or_workflow(target)
    if isinstance(found, JobQueue):
        if names:
            raise click.UsageError(f"{target} is no workflow: it takes no --step")
        return [lane_with(found, target, handler)], partial(queue_result, found)
    if handler is not None:
        raise click.UsageError(f"the steps of {target} have handlers of their own: give no HANDLER")
    steps = [found] if isinstance(found, Step) else steps_named(found, names)
    mapping = steps[0].queue.mapping
    return steps, partial(step_result, mapping, steps)


def lane_with(queue: JobQueue[Any], target: str, handler: str | None) -> Lane[Any]:
    """Return the lane of a queue with its own handler, or with the one that is named.

    Raises:
        UsageError: it has none, or has one already.
    """
    if (handler is None) is (queue.handled_by is None):
        raise click.UsageError(
            f"{target} has no handler: declare one with @queue.handler, or give HANDLER"
            if handler is None
            else f"{target} has a handler of its own: give no HANDLER"
        )
    return lane_of(queue) if handler is None else Lane(queue, load_handler(handler))


def steps_named(workflow: Workflow[Any], names: Sequence[str]) -> Sequence[Step[Any]]:
    """Return the named steps in the workflow's order, or all steps if no name is given."""
    known = [step.name for step in workflow]
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no step {name!r}; there are {', '.join(known)}")
    return [step for step in workflow if not names or step.name in names]


def key_of(job: Any) -> str:
    """Return the primary key as text."""
    return ", ".join(map(str, inspect(job).identity))


def queue_result(queue: JobQueue[Any], job: Any, outcome: Outcome) -> str:
    """Return what became of a job, in the table's own words."""
    mapping = queue.mapping
    if outcome is None:
        return word_of(mapping, queue.then)
    if isinstance(outcome, Cancel):
        return mapping.word(CANCELLED)
    again = AGAIN if attempts_remain(queue, job) else ""
    return f"{mapping.word(FAILED)}{again}"


def step_result(
    mapping: QueueMapping, steps: Sequence[Step[Any]], job: Any, outcome: Outcome
) -> str:
    """Return the status to which a job of a workflow went, or in which it is tried again."""
    status: str = getattr(job, mapping.attributes["status"])
    for step in steps:
        if status == step.during:  # the row was deleted, so the job still shows the old status
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
