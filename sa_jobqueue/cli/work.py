"""``work``: a worker on queues with their handlers, on a module's queues, or on steps."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from datetime import timedelta
from inspect import isawaitable
from itertools import count, product
from typing import Any

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.util import await_only

from ..process import SIGNALS, THREADS, first_signal_stops, function_name
from ..worker import GRACE, LONGEST_POLL, Lane, Worker
from ..worker.lanes import lanes_of
from . import logs
from .command import TARGETS
from .database import DATABASES, check_file, driver_errors, named_databases, require_tables
from .options import flag, number, plain_command, seconds, text
from .processes import OwnProcess, Supervisor
from .serve import answer_probes
from .targets import load_lanes, load_target

log = logging.getLogger("sa_jobqueue.cli")

ASYNC_DRIVERS = "postgresql+asyncpg, mysql+aiomysql or sqlite+aiosqlite"


@plain_command(TARGETS, *DATABASES)
def work(
    targets: tuple[str, ...],
    handler: str | None = text("For a class, or a queue without a handler.", "MODULE:FUNCTION"),
    processes: int | None = number("Start N processes, and replace the dead.  [default: this one]"),
    concurrency: int = number("Run N handlers at once: threads, or tasks if async def.", default=1),
    limit: int | None = number("Hold at most N jobs.  [default: --concurrency, or more]"),
    drain: bool = flag("Stop when the queues are empty."),
    poll: timedelta = seconds("The longest pause of an idle worker.", LONGEST_POLL),
    grace: timedelta = seconds("How long handlers may go on at the end.", GRACE, zero=True),
    max_runtime: timedelta | None = seconds("Claims that are older are reaped.  [default: none]"),
    health_port: int | None = number("Answer GET /live and GET /ready on this port.", most=65_535),
    max_jobs: int | None = number("End the process after N jobs; --processes replaces it."),
    setup: str | None = text("Called once in each process, before its work.", "MODULE:FUNCTION"),
    log_level: str | None = logs.LEVEL,
    log_json: bool = logs.AS_JSON,
) -> None:
    """Run a worker: claim jobs and call their handlers.

    A target is MODULE:QUEUE, which names a JobQueue, a workflow or a step. It can also be MODULE,
    for all queues with a handler and all workflows of a module. Give --handler for a mapped class,
    or for a queue without a handler.

    At SIGTERM or Ctrl-C the worker lets running handlers finish within the grace, and releases all
    other jobs. A second signal ends the worker at once.
    """
    databases, context = named_databases(), click.get_current_context()
    own = context.find_object(OwnProcess) or OwnProcess(may_end=False)
    if processes is not None and not own.is_child:
        logs.set_up_logging(log_level, as_json=log_json)
        supervisor = Supervisor(processes, drain=drain, grace=grace)
        if health_port is not None:  # a stuck child ends itself, and is replaced
            answer_probes(health_port, live=lambda: None, ready=lambda: supervisor.trouble)
        context.exit(supervisor.run())
    lanes, unhandled = _load_lanes(targets, handler)
    tally = logs.Tally(lanes.values(), quiet=logs.set_up_logging(log_level, as_json=log_json))
    if unhandled:
        log.info("queues without a handler are left alone: %s", ", ".join(unhandled))
    if setup is not None:
        load_target(setup)()
    options: dict[str, Any] = {"concurrency": concurrency, "limit": limit, "drain": drain}
    options |= {"poll": poll, "grace": grace, "max_runtime": max_runtime}
    parts = [part for lane in lanes.values() for part in lane.parts]

    def run(sources: dict[str, Any], engines: dict[str, Engine]) -> bool:
        for engine, part in product(engines.values(), parts):
            check_file(engine)
            if part.is_async is not engine.dialect.is_async:
                raise click.ClickException(
                    f"{function_name(part.handler)} is {'async def' if part.is_async else 'plain'},"
                    f" and {engine.url.drivername} is {'not ' * part.is_async}for asyncio: name a "
                    f"driver of the other kind, {ASYNC_DRIVERS} for async def, or run two commands"
                )
        kind: Any = Worker
        runtime = THREADS
        if parts[0].is_async:
            from ..asyncio.worker import TASKS, AsyncWorker  # it needs greenlet

            kind, runtime = AsyncWorker, TASKS
        changing = bool(databases.engine) and "" not in sources
        source = sources.get("", databases.sources if changing else sources)
        numbers = count(1)

        def stop_after_the_last(_job: object, _outcome: object) -> None:
            if next(numbers) == max_jobs:
                log.info("the worker has done %d jobs, and ends", max_jobs)
                worker.stop()

        if max_jobs is not None:
            options["on_outcome"] = stop_after_the_last
        worker = kind(source, list(lanes.values()), **options)
        if health_port is not None and not own.is_child:
            answer_probes(health_port, live=lambda: worker.stuck, ready=lambda: worker.trouble)
        now = databases.engines_now if changing else lambda: engines
        with tally.told_each_minute(runtime, now):
            return _run_worker(worker, lanes, own)

    try:
        stopped = databases.open(run, awaits=any(part.is_async for part in parts))
    except SystemExit as error:  # that the queues are empty, only an end of the worker's own says
        log.error("SystemExit(%r) has ended this worker: a job's handler raised it", error.code)
        context.exit(error.code if isinstance(error.code, int) and error.code else 1)
    log.info("the worker was stopped" if stopped else "no job is due, and no retry waits")


def _load_lanes(
    targets: Sequence[str], handler: str | None
) -> tuple[dict[str, Lane[Any]], list[str]]:
    """Return the lanes of a worker by the names of their targets, and the queues to leave alone.

    Those of a module that have no handler are left alone, unless nothing in the modules has one.

    Raises:
        ArgumentError: a queue has no handler, or there is no queue that --handler can be for.
    """
    found = load_lanes(targets)
    handled = {
        name: it
        for name, it in found.items()
        if handler or name in targets or isinstance(it, Lane) or it.handled_by
    }
    queues = handled or found
    given: Any = list(queues.values()) if len(queues) > 1 else next(iter(queues.values()))
    lanes = lanes_of(given, load_target(handler) if handler else None)
    return dict(zip(queues, lanes, strict=True)), [name for name in found if name not in queues]


def _run_worker(worker: Any, lanes: dict[str, Lane[Any]], own: OwnProcess) -> bool:
    """Run a Worker, or in a greenlet an AsyncWorker, until it ends; tell whether it was stopped."""

    def check(connection: Connection) -> None:
        require_tables(connection, {lane.mapping.table for lane in lanes.values()})

    def done(result: Any) -> Any:
        return await_only(result) if isawaitable(result) else result

    # A terminal sends Ctrl-C to all processes; the supervisor asks its children itself. A second
    # signal ends the process: whatever runs may take its time over a KeyboardInterrupt.
    signals = (signal.SIGTERM,) if own.is_child else SIGNALS
    with first_signal_stops(worker.stop, *signals, then=signal.SIG_DFL):
        with driver_errors():
            is_ready = done(worker.check_database(check))
        if is_ready:
            log.info("a worker begins: %s", ", ".join(lanes))
            with own.working(worker.stop, lambda: worker.trouble):
                done(worker.run())
    return bool(worker.stopping)
