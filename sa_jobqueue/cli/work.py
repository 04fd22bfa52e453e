"""``work``: a worker on queues with their handlers, on a module's queues, or on steps."""

from __future__ import annotations

import logging
import signal
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, cast

import click

from ..worker import GRACE, LONGEST_POLL, REAP_EVERY, WorkerOptions
from .lanes import load_lanes, unhandled_in
from .last_deadline import LastDeadline
from .log_output import log_options, set_up_logging
from .options import assume_locks_option, seconds_option, url_option
from .run_worker import AnyWorker, WorkerRun
from .stop_signals import SIGNALS, stopped_by_signals
from .supervised import Supervision
from .supervisor import Supervisor

log = logging.getLogger("sa_jobqueue.cli")

#: Where the command's context keeps its arguments, for the children of a supervisor.
ARGUMENTS = "sa_jobqueue.arguments"


class WorkCommand(click.Command):
    """A command that knows the arguments that it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the arguments, and parse them."""
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=WorkCommand)
@click.argument("targets", metavar="TARGET..", nargs=-1, required=True)
@click.option(
    "--handler",
    metavar="MODULE:FUNCTION",
    help="The handler for a mapped class, or for a queue that has no handler.",
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="NAME",
    help="Work only on this step of a workflow. You can repeat it.  [default: all]",
)
@url_option
@assume_locks_option
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Start N processes, and replace those that die.  [default: work in this one]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run N handlers at once in a process: threads, or tasks for async def handlers.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Hold at most N claimed jobs in a process.  "
    "[default: --concurrency, and a few more for quick handlers]",
)
@click.option("--drain", is_flag=True, help="Stop when the queues are empty.")
@seconds_option(
    "--poll",
    default=LONGEST_POLL.total_seconds(),
    show_default=True,
    zero=False,
    help="The longest pause of an idle worker between two looks for jobs.",
)
@seconds_option("--interval", default=0, help="The pause before each claim, to limit the load.")
@seconds_option(
    "--grace",
    default=GRACE.total_seconds(),
    show_default=True,
    help="The time that running handlers have after SIGTERM or Ctrl-C.",
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
    help="After this time, the claim of a job is not renewed, and workers with this option reap "
    "it.  [default: no limit]",
)
@seconds_option(
    "--reap-every",
    default=REAP_EVERY.total_seconds(),
    show_default=True,
    help="The pause between two reaps of dead owners' claims; 0: never reap.",
)
@log_options
@click.pass_context
def work(
    context: click.Context,
    /,
    targets: tuple[str, ...],
    handler: str | None,
    steps: tuple[str, ...],
    url: str | None,
    processes: int | None,
    log_level: str | None,
    log_json: bool,
    **options: Any,
) -> None:
    """Run a worker: claim jobs and call their handlers.

    TARGET is MODULE:QUEUE, which names a JobQueue, a workflow or a step. TARGET can also be MODULE,
    for all queues with a handler and all workflows of a module. You can give several. Give
    --handler for a mapped class, or for a queue without a handler.

    At SIGTERM or Ctrl-C the worker lets running handlers finish within the grace, and releases all
    other jobs. A second signal ends the worker at once.
    """
    supervision = context.find_object(Supervision)
    if processes is not None and supervision is None:
        if options["owner"] is not None:
            raise click.UsageError("--owner names one worker: leave it out with --processes")
        set_up_logging(log_level, as_json=log_json)
        supervisor = Supervisor(
            context.meta[ARGUMENTS], processes, drain=options["drain"], grace=options["grace"]
        )
        context.exit(supervisor.run())
    lanes = load_lanes(targets, handler, steps)
    set_up_logging(log_level, as_json=log_json)
    if unhandled := unhandled_in(targets):
        log.info("queues without a handler are left alone: %s", ", ".join(unhandled))
    # A terminal sends Ctrl-C to all processes; the supervisor asks its children itself.
    signals = SIGNALS if supervision is None else (signal.SIGTERM,)

    deadline = LastDeadline(options["grace"])

    def stopping(worker: AnyWorker) -> AbstractContextManager[None]:
        return stopped_by_signals(deadline.noting(worker.stop), *signals)

    def running(worker: AnyWorker) -> AbstractContextManager[None]:
        log.info("a worker begins: %s", ", ".join(lanes))
        if supervision is not None:
            supervision.begin_work(deadline.noting(worker.stop))
        return deadline.after_run()

    run = WorkerRun(list(lanes.values()), url, worker_options(**options), stopping, running)
    try:
        stopped = run.run()
    except SystemExit as error:  # that the queues are empty, only an end of the worker's own says
        log.error("SystemExit(%r) has ended this worker: a job's handler raised it", error.code)
        context.exit(error.code if isinstance(error.code, int) and error.code else 1)
    log.info("the worker was stopped" if stopped else "no job is due, and no retry waits")


def worker_options(reap_every: timedelta, limit: int | None, **options: Any) -> WorkerOptions:
    """Return the options as a worker takes them."""
    if limit is not None and limit < options["concurrency"]:
        raise click.UsageError("--limit must be at least as large as --concurrency")
    return cast("WorkerOptions", {**options, "limit": limit, "reap_every": reap_every or None})
