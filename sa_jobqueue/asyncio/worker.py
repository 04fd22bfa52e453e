"""The worker in an event loop, for handlers that are awaited.

::

    async def send(email: Email) -> None: ...

    await AsyncWorker(async_engine, JobQueue(Email), send, limit=10, concurrency=10).run()

It is a :class:`sa_jobqueue.worker.Worker` that is run in a greenlet: its transactions use
the async driver, its pauses and its handlers are awaited, and its heartbeat is a task.

Its slots are tasks that await handlers, and do turns in greenlets. A handler is awaited outside of
the worker's greenlets: through them, batches of a hundred jobs that do nothing were 6 % slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from inspect import isawaitable
from typing import Any, Unpack

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..errors import ArgumentError
from ..fence.claim import Claim
from ..process import Background
from ..queue import JobQueue
from ..worker import Done, Lane, Outcome, Worker, WorkerOptions
from ..worker.connections import what_to_give
from ..worker.crew import Crew
from ..worker.handlers import Attempt
from ..worker.lanes import NotDone
from ..worker.worker import T
from .calls import TASKS, AwaitedCalls, SyncSessions
from .calls import Background as BackgroundTask
from .verbs import AsyncJobQueue

AsyncHandler = Callable[[T], Coroutine[Any, Any, Done | NotDone | None]]


class AwaitedCrew(Crew):
    """The tasks of one run. A task runs alone until it waits, so it needs no lock."""

    def _start_slot(self, name: str) -> Background:
        return BackgroundTask(self._await_in_slot(), name)

    async def _await_in_slot(self) -> None:
        """Do turns, and await handlers, until the run ends; as a slot in a thread does."""
        handled = None
        calls: Any = self.calls
        while True:
            if handled is not None:
                self.put_handled(handled)
            while (step := self.next_step()) is None:
                if self.ended:
                    return
                await greenlet_spawn(self.slot_is_needed.wait)
            if isinstance(step, tuple) or step.ended or step.lane.transactional:
                handled = await greenlet_spawn(self.do, step)
                continue
            handled = step
            try:
                with Attempt(calls, step) as attempt:
                    attempt.outcome = await calls.awaited(step.lane, attempt.context, step.job)
            except BaseException as error:
                handled = self.end_by_handler(error, step)


class AsyncWorker(Worker[T]):
    """A loop over one queue or several, or over steps of a workflow; its handlers are awaited.

    The arguments are those of :class:`sa_jobqueue.worker.Worker`, with these differences:

    Args:
        engine: an AsyncEngine or an async_sessionmaker.
        queue: a JobQueue or an AsyncJobQueue, or several; a Workflow, or one or several steps.
        handler: ``async def``; called with each job. The handlers of a workflow's
            steps are ``async def`` too.
        concurrency: how many handlers run at once, each in a task of its own.
        grace: handlers that run for longer after :meth:`stop` are cancelled, and their jobs
            released.
        on_claim: a plain function, or ``async def``.
        on_outcome: a plain function, or ``async def``.
        options: the further arguments of a Worker.

    Raises:
        ArgumentError: neither AsyncEngine nor async_sessionmaker, a handler that is a plain
            function, two queues with the same jobs, or a strategy whose claims write nothing.
    """

    _runtime = TASKS
    _crew_kind = AwaitedCrew
    _calls_kind = AwaitedCalls
    _calls: AwaitedCalls

    def __init__(
        self,
        engine: AsyncEngine | async_sessionmaker[Any],
        queue: JobQueue[T]
        | AsyncJobQueue[T]
        | Lane[T]
        | Iterable[JobQueue[Any] | AsyncJobQueue[Any] | Lane[Any]],
        handler: AsyncHandler[T] | None = None,
        *,
        on_claim: Callable[[Claim[T]], Awaitable[None] | None] | None = None,
        on_outcome: Callable[[T, Outcome], Awaitable[None] | None] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(engine, AsyncEngine | async_sessionmaker):
            raise ArgumentError(
                f"an AsyncWorker needs an AsyncEngine, or an async_sessionmaker, not {engine!r}: "
                f"{what_to_give(engine, 'async_') or 'for a synchronous engine use Worker'}"
            )
        super().__init__(
            engine.sync_engine if isinstance(engine, AsyncEngine) else SyncSessions(engine),
            sync_queues(queue),
            handler,  # type: ignore[arg-type]  # it is awaited
            on_claim=_in_greenlet(on_claim),
            on_outcome=_in_greenlet(on_outcome),
            **options,
        )
        self.engine = AsyncEngine(self._engine)

    async def run(self) -> None:  # type: ignore[override]  # what waits is awaited
        """Work until stopped, or, with `drain`, until the queue is empty.

        When the run is cancelled, it cancels its handlers, finishes the handled jobs
        and releases the others before it ends; cancelled again, it ends at once.

        Raises:
            ArgumentError: a database in memory has too few connections for `concurrency`, or the
                engine's pool for transactional handlers; or the worker runs already.
            Exception: what the database still refused after five minutes (PATIENCE).
        """
        self._calls.note_caller()
        work = _caught(greenlet_spawn(super().run))
        running = asyncio.create_task(work, name="sa_jobqueue worker")
        try:
            error = await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            self._calls.interrupt()
            await running
            raise
        if error is not None:
            raise error

    async def check_database(  # type: ignore[override]  # as above
        self, check: Callable[[Connection], None]
    ) -> bool:
        """Call `check`, a plain function, with a connection, before :meth:`run`.

        As :meth:`sa_jobqueue.worker.Worker.check_database`.
        """
        return await greenlet_spawn(super().check_database, check)

    def _notify(self) -> None:
        loop = None if self._calls.caller is None else self._calls.caller.get_loop()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(super()._notify)


def sync_queues(queue: Any) -> Any:
    """Return what a Worker takes for one queue or several."""
    if isinstance(queue, Iterable) and not isinstance(queue, str | type):
        return [sync_queues(each) for each in queue]
    return queue.sync_queue if isinstance(queue, AsyncJobQueue) else queue


async def _caught(awaited: Awaitable[None]) -> BaseException | None:
    """Await a worker; return what it raised to end the process.

    A task that raises SystemExit or KeyboardInterrupt ends the event loop at once: the worker
    could not finish its jobs any more.
    """
    try:
        await awaited
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return error
    return None


def _in_greenlet(callback: Callable[..., Awaitable[None] | None] | None) -> Any:
    """Make a plain function of a callback, which may be ``async def``."""
    if callback is None:
        return None

    def call(*args: Any) -> None:
        result = callback(*args)
        if isawaitable(result):
            await_only(result)

    return call
