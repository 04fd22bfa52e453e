"""``work``: a worker on queues with their handlers, on a module's queues, or on steps."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.util import await_only

from ..process import SIGNALS, first_signal_stops, function_name
from ..queue import JobQueue
from ..worker import DEADLINE, GRACE, LONGEST_POLL, Lane, Worker
from ..worker.lanes import lanes_of
from .command import database_options, flag, number, seconds, targets_argument, text
from .database import Database, driver_errors, require_tables
from .logs import log_options, set_up_logging
from .processes import OwnProcess, Supervisor
from .serve import answer_probes
from .targets import load_lanes, load_target

log = logging.getLogger("sa_jobqueue.cli")

ASYNC_DRIVERS = "postgresql+asyncpg, mysql+aiomysql or sqlite+aiosqlite"


@click.command()
@targets_argument
@text("--handler", "For a mapped class, or a queue that has no handler.", "MODULE:FUNCTION")
@number("--processes", "Start N processes, and replace those that die.  [default: this one]")
@number("--concurrency", "Run N handlers at once: threads, or tasks if async def.", default=1)
@number("--limit", "Hold at most N jobs.  [default: --concurrency, more for quick handlers]")
@flag("--drain", "Stop when the queues are empty.")
@seconds("--poll", "The longest pause of an idle worker.", default=LONGEST_POLL.total_seconds())
@seconds(
    "--grace",
    "The time that running handlers have after SIGTERM or Ctrl-C.",
    zero=True,
    default=GRACE.total_seconds(),
)
@seconds("--max-runtime", "Then claims are not renewed, and are reaped.  [default: no limit]")
@seconds(
    "--deadline",
    "The longest time of a call to the database; then it is tried on a new connection.",
    default=DEADLINE.total_seconds(),
)
@number("--health-port", "Answer GET /live and GET /ready on this port.", most=65_535)
@number("--max-jobs", "End the process after N jobs; --processes replaces it.")
@number("--max-memory", "End the process when it has used N MB; --processes replaces it.")
@text("--setup", "Called once in each process, before its work.", "MODULE:FUNCTION")
@text("--on-outcome", "Called with each finished job and its outcome.", "MODULE:FUNCTION")
@database_options
@log_options
@click.pass_context
def work(
    context: click.Context,
    /,
    targets: tuple[str, ...],
    handler: str | None,
    processes: int | None,
    database: Database,
    log_level: str | None,
    log_json: bool,
    health_port: int | None,
    max_jobs: int | None,
    max_memory: int | None,
    setup: str | None,
    on_outcome: str | None,
    **options: Any,
) -> None:
    """Run a worker: claim jobs and call their handlers.

    A target is MODULE:QUEUE, which names a JobQueue, a workflow or a step. It can also be MODULE,
    for all queues with a handler and all workflows of a module. Give --handler for a mapped class,
    or for a queue without a handler.

    At SIGTERM or Ctrl-C the worker lets running handlers finish within the grace, and releases all
    other jobs. A second signal ends the worker at once.
    """
    own = context.find_object(OwnProcess)
    supervised = own is not None and own.pipe is not None
    if processes is not None and not supervised:
        set_up_logging(log_level, as_json=log_json)
        drain, grace = options["drain"], options["grace"]
        supervisor = Supervisor(processes, drain=drain, grace=grace)
        if health_port is not None:  # a stuck child ends itself, and is replaced
            answer_probes(health_port, live=lambda: None, ready=lambda: supervisor.trouble)
        context.exit(supervisor.run())
    lanes, unhandled = _load_lanes(targets, handler)
    set_up_logging(log_level, as_json=log_json)
    if unhandled:
        log.info("queues without a handler are left alone: %s", ", ".join(unhandled))
    if setup is not None:
        load_target(setup)()
    most = Most(max_jobs, max_memory, None if on_outcome is None else load_target(on_outcome))
    if most.is_needed:
        options["on_outcome"] = most.note
    port = None if supervised else health_port

    def run(source: Any, engine: Engine) -> bool:
        return _run_worker(source, engine, lanes, own, most, port, options)

    try:
        stopped = database.open(
            run, awaits=any(part.is_async for lane in lanes.values() for part in lane.parts)
        )
    except SystemExit as error:  # that the queues are empty, only an end of the worker's own says
        log.error("SystemExit(%r) has ended this worker: a job's handler raised it", error.code)
        context.exit(error.code if isinstance(error.code, int) and error.code else 1)
    log.info("the worker was stopped" if stopped else "no job is due, and no retry waits")


class Most:
    """Stops a worker that has done so many jobs, or has used so much memory.

    Args:
        on_outcome: the user's own function, also called with each job and its outcome.
    """

    stop: Callable[[], None]

    def __init__(
        self, jobs: int | None, megabytes: int | None, on_outcome: Callable[[Any, Any], Any] | None
    ) -> None:
        self._jobs, self._megabytes, self._on_outcome = jobs, megabytes, on_outcome
        self._done = 0
        self.is_needed = any(it is not None for it in (jobs, megabytes, on_outcome))

    def note(self, job: Any, outcome: Any) -> Any:
        """Count a job that was finished; stop the worker if it was the last one."""
        told = None if self._on_outcome is None else self._on_outcome(job, outcome)
        self._done += 1
        if self._done == self._jobs:
            log.info("the worker has done %d jobs, and ends", self._done)
            self.stop()
        elif self._megabytes is not None and memory_used() > self._megabytes:
            log.info("the worker has used more than %d MB, and ends", self._megabytes)
            self._megabytes = None
            self.stop()
        return told


def memory_used() -> float:
    """Return the most memory that this process has used, in MB."""
    from resource import RUSAGE_SELF, getrusage  # not on Windows

    used = getrusage(RUSAGE_SELF).ru_maxrss
    return used / (1_000_000 if sys.platform == "darwin" else 1_000)


def _load_lanes(
    targets: Sequence[str], handler: str | None
) -> tuple[dict[str, Lane[Any]], list[str]]:
    """Return the lanes of a worker by the names of their targets, and the queues without handlers.

    Raises:
        UsageError: a queue that is named has no handler, or nothing in the modules has one.
    """
    found = load_lanes(targets)
    if handler is not None:
        (name, queue), *others = found.items()
        if others or not isinstance(queue, JobQueue):
            raise click.UsageError(f"--handler is for one queue, not {', '.join(found)}")
        return {name: lanes_of(queue, load_target(handler))[0]}, []
    without = [
        name for name, it in found.items() if isinstance(it, JobQueue) and it.handled_by is None
    ]
    if set(without).intersection(targets) or len(without) == len(found):
        raise click.UsageError(
            f"{', '.join(without)} has no handler: declare one with @queue.handler, or name one "
            "queue, MODULE:QUEUE, and give --handler MODULE:FUNCTION"
        )
    handled = [name for name in found if name not in without]
    lanes: tuple[Lane[Any], ...] = lanes_of([found[name] for name in handled], None)
    return dict(zip(handled, lanes, strict=True)), without


def _run_worker(
    source: Any,
    engine: Engine,
    lanes: dict[str, Lane[Any]],
    own: OwnProcess | None,
    most: Most,
    health_port: int | None,
    options: dict[str, Any],
) -> bool:
    """Run a Worker, or in a greenlet an AsyncWorker, until it ends; tell whether it was stopped."""
    is_async = engine.dialect.is_async
    for part in (part for lane in lanes.values() for part in lane.parts):
        if part.is_async is not is_async:
            raise click.ClickException(
                f"{function_name(part.handler)} is {'async def' if part.is_async else 'plain'}, "
                f"and {engine.url.drivername} is {'' if is_async else 'not '}for asyncio: name "
                f"a driver of the other kind, {ASYNC_DRIVERS} for async def; two commands run both"
            )
    kind: Any = Worker
    if is_async:
        from ..asyncio import AsyncWorker  # it needs greenlet

        kind = AsyncWorker
    worker = kind(source, list(lanes.values()), **options)
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(time.monotonic())
        worker.stop()

    most.stop = stop
    if health_port is not None:
        answer_probes(health_port, live=lambda: worker.stuck, ready=lambda: worker.trouble)

    def check(connection: Connection) -> None:
        require_tables(connection, {lane.mapping.table for lane in lanes.values()})

    def done(result: Any) -> Any:
        return await_only(result) if is_async else result

    # A terminal sends Ctrl-C to all processes; the supervisor asks its children itself. A second
    # signal ends the process: whatever runs may take its time over a KeyboardInterrupt.
    signals = (signal.SIGTERM,) if own is not None and own.pipe is not None else SIGNALS
    with first_signal_stops(stop, *signals, then=signal.SIG_DFL):
        with driver_errors():
            is_ready = done(worker.check_database(check))
        if is_ready:
            log.info("a worker begins: %s", ", ".join(lanes))
            if own is not None:
                own.begin_work(stop, lambda: worker.trouble)
            exit_code = 1
            try:
                done(worker.run())
                exit_code = 0
            finally:
                if own is not None and (stopped or exit_code):
                    grace = options["grace"].total_seconds()
                    own.end_at(stopped[0] + grace if stopped else 0.0, exit_code)
    return bool(worker.stopping)
