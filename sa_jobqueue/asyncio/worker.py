"""The worker in an event loop, for handlers that are awaited.

::

    async def send(email: Email) -> None: ...

    await AsyncWorker(async_engine, JobQueue(Email), send, limit=10, concurrency=10).run()

It is :class:`sa_jobqueue.worker.Worker` itself, run in a greenlet: its transactions use
the async driver, its pauses and its handlers are awaited, and its heartbeat is a
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from inspect import isawaitable
from signal import Signals
from typing import Any, Generic, TypeVar, Unpack

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..errors import ArgumentError
from ..fence.claim import Claim
from ..queue import JobQueue
from ..worker import Batch, Cancel, Lane, Outcome, Retry, Worker, WorkerOptions
from .tasks import Tasks
from .verbs import AsyncJobQueue

T = TypeVar("T")

AsyncHandler = Callable[[T], Coroutine[Any, Any, Retry | Cancel | None]]


class AsyncWorker(Generic[T]):
    """A loop over one queue, or over steps of a workflow, with handlers that are awaited.

    The arguments are those of :class:`sa_jobqueue.worker.Worker`, with these differences:

    Args:
        engine: an AsyncEngine or an async_sessionmaker.
        queue: a JobQueue or an AsyncJobQueue; a Workflow, one of its steps or several.
        handler: ``async def``; called with each job. The handlers of a workflow's
            steps are ``async def`` too.
        owner: to give an Owner, make it with an Engine of a synchronous driver for the
            same database. By default the worker claims under a plain name: when it
            dies, its claims wait for the lease.
        concurrency: how many jobs of one claim are handled at once.
        on_claim, on_outcome: plain functions, or ``async def``.
        options: the further arguments of a Worker.

    Raises:
        ArgumentError: no AsyncEngine, or a strategy whose claims write nothing.
    """

    def __init__(
        self,
        engine: AsyncEngine | async_sessionmaker[Any],
        queue: JobQueue[T]
        | AsyncJobQueue[T]
        | Lane[T]
        | Iterable[JobQueue[T] | AsyncJobQueue[T] | Lane[T]],
        handler: AsyncHandler[T] | None = None,
        *,
        concurrency: int = 1,
        on_claim: Callable[[Claim[T]], Awaitable[None] | None] | None = None,
        on_outcome: Callable[[T, Outcome], Awaitable[None] | None] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(engine, AsyncEngine | async_sessionmaker):
            raise ArgumentError(
                f"an AsyncWorker needs an AsyncEngine, or an async_sessionmaker, not {engine!r}; "
                "use Worker"
            )
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ArgumentError(f"concurrency is a number of jobs, at least 1: {concurrency!r}")
        self._worker = _GreenWorker(
            engine.sync_engine if isinstance(engine, AsyncEngine) else _SyncSessions(engine),
            _sync_queues(queue),
            handler,
            concurrency,
            on_claim=_in_greenlet(on_claim),
            on_outcome=_in_greenlet(on_outcome),
            **options,
        )

    async def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        When the run is cancelled, it cancels its handlers, finishes the handled jobs
        and releases the others before it ends; cancelled again, it ends at once.

        Raises:
            Exception: what the database still refused after five minutes (PATIENCE).
        """
        work = _caught(greenlet_spawn(self._worker.run))
        running = asyncio.create_task(work, name="sa_jobqueue worker")
        try:
            _, error = await asyncio.shield(running)
        except asyncio.CancelledError:
            self._worker.stop_and_cancel()
            await running
            raise
        if error is not None:
            raise error

    def stop(self) -> None:
        """Finish the running jobs, release the rest, and return from :meth:`run`.

        Safe to call from a signal handler or another thread.
        """
        self._worker.stop()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._worker.stopping

    def stopping_on_signals(self, *signals: Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        return self._worker.stopping_on_signals(*signals)


def _sync_queues(queue: Any) -> Any:
    """Return what a Worker takes for one queue or several."""
    if isinstance(queue, AsyncJobQueue):
        return queue.sync_queue
    if isinstance(queue, Sequence) and not isinstance(queue, str):
        return [_sync_queues(each) for each in queue]
    return queue


class _SyncSessions(sessionmaker[Any]):
    """Opens the synchronous sessions inside of those of an async_sessionmaker."""

    def __init__(self, maker: async_sessionmaker[Any]) -> None:
        super().__init__()
        self._maker = maker

    def __call__(self, **options: Any) -> Any:
        opened = self._maker(**options)
        opened.sync_session.info[_ASYNC_SESSION] = opened
        return opened.sync_session


#: Where a session inside of an AsyncSession keeps that, for a transactional handler.
_ASYNC_SESSION = "sa_jobqueue.async_session"


class _GreenWorker(Worker[T]):
    """The worker in a greenlet: it waits and calls handlers in its own way."""

    _runtime = Tasks()

    def __init__(
        self,
        engine: Any,
        queue: JobQueue[T] | Lane[T] | Iterable[Lane[T]],
        handler: AsyncHandler[T] | None,
        concurrency: int,
        **options: Any,
    ) -> None:
        super().__init__(engine, queue, handler, **options)  # type: ignore[arg-type]  # the handler is awaited
        self._concurrency = concurrency
        self._running: set[asyncio.Task[Any]] = set()
        self._cancelled = False

    def stop_and_cancel(self) -> None:
        """Stop, and cancel the handlers: their jobs are released."""
        self.stop()
        self._cancelled = True
        for task in self._running:
            task.cancel()

    def _check_handlers(self) -> None:
        """Refuse plain transactional handlers; of others only a call tells what they return."""
        for lane in self.lanes:
            if lane.transactional and not lane.is_async:
                raise ArgumentError(
                    f"{lane.handler!r} is transactional, and its session is an AsyncSession here: "
                    "make it async def, or use a Worker on a synchronous engine"
                )

    def _open_for_handler(self) -> Session:
        opened: Session
        if self._open_session is None:
            opened = _SyncSessions(async_sessionmaker(AsyncEngine(self.engine)))()
        else:
            opened = self._open_session()
        return opened

    def _call_with_session(self, handler: Callable[..., Any], session: Session, job: Any) -> Any:
        return self._call(handler, session.info[_ASYNC_SESSION], job)

    def _call(self, handler: Callable[..., Any], *arguments: Any) -> Any:
        """Run the handler in a task of its own: so it can be cancelled without the worker."""
        called = handler(*arguments)
        if not isawaitable(called):
            raise ArgumentError(f"an AsyncWorker awaits its handlers: make {handler!r} async def")
        task = asyncio.create_task(_caught(called))
        self._running.add(task)
        try:
            returned, error = await_only(task)
        except asyncio.CancelledError as cancelled:
            if self._is_own_stop(cancelled):
                raise
            raise RuntimeError("the handler was cancelled, and its worker was not") from cancelled
        finally:
            self._running.discard(task)
        if error is not None:
            raise error
        return returned

    def _is_own_stop(self, error: BaseException) -> bool:
        current = asyncio.current_task()
        cancelled = self._cancelled or (current is not None and current.cancelling() > 0)
        return isinstance(error, asyncio.CancelledError) and cancelled

    def _handle_all(self, batch: Batch[T]) -> None:
        """Handle the jobs of a batch, several at once, until stopped."""
        handle = super()._handle_all
        if self._concurrency == 1:
            handle(batch)
            return
        at_once = min(self._concurrency, len(batch.unhandled))
        await_only(_all([_caught(greenlet_spawn(handle, batch)) for _ in range(at_once)]))


async def _caught(awaited: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Await a handler, or a worker; return what it returned, and what it raised to end the process.

    A task that raises SystemExit or KeyboardInterrupt ends the event loop at once: the worker
    could not finish its jobs any more.
    """
    try:
        return await awaited, None
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return None, error


async def _all(parts: Sequence[Coroutine[Any, Any, tuple[Any, BaseException | None]]]) -> None:
    """Await all parts to their end; raise what the first of them raised."""
    for ended in await asyncio.gather(*parts, return_exceptions=True):
        error = ended if isinstance(ended, BaseException) else ended[1]
        if error is not None:
            raise error


def _in_greenlet(callback: Callable[..., Awaitable[None] | None] | None) -> Any:
    """Make a plain function of a callback, which may be ``async def``."""
    if callback is None:
        return None

    def call(*args: Any) -> None:
        result = callback(*args)
        if isawaitable(result):
            await_only(result)

    return call
