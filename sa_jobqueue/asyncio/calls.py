"""How an AsyncWorker calls handlers: in the task of their slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import Context
from datetime import timedelta
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only

from ..errors import ArgumentError, HandlerTimeout
from ..worker import Lane
from ..worker.awaited import is_plain
from ..worker.calls import Calls
from ..worker.in_hand import InHand
from ..worker.transactions import Stopped

#: Where a session inside of an AsyncSession keeps that, for a transactional handler.
_ASYNC_SESSION = "sa_jobqueue.async_session"


class SyncSessions(sessionmaker[Any]):
    """Opens the synchronous sessions inside of those of an async_sessionmaker."""

    def __init__(self, maker: async_sessionmaker[Any]) -> None:
        super().__init__()
        self._maker = maker

    def __call__(self, **options: Any) -> Any:
        opened = self._maker(**options)
        opened.sync_session.info[_ASYNC_SESSION] = opened
        return opened.sync_session


class AwaitedCalls(Calls):
    """Await handlers, and cancel them where they take too long."""

    keeps_timeouts = True

    def __init__(self, engine: Any, open_session: Callable[[], Session] | None) -> None:
        if open_session is None:
            open_session = SyncSessions(async_sessionmaker(AsyncEngine(engine)))
        super().__init__(engine, open_session)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse plain functions; of other handlers only a call tells what they return.

        Raises:
            ArgumentError: it names the handler.
        """
        for lane in lanes:
            if lane.transactional and not lane.is_async:
                raise ArgumentError(
                    f"{lane.handler!r} is transactional, and an AsyncWorker gives it an "
                    "AsyncSession: make it async def, or use a Worker on a synchronous engine"
                )
            if is_plain(lane.handler):
                raise ArgumentError(
                    f"{lane.handler!r} is a plain function, and an AsyncWorker awaits its "
                    "handlers: make it async def, or use a Worker on a synchronous engine"
                )

    def call(self, in_hand: InHand[Any], context: Context) -> Any:
        """Await the handler with the job, and return what it returns."""
        return self._await(in_hand.lane, context, in_hand.job)

    def call_in(self, session: Session, in_hand: InHand[Any], context: Context, job: Any) -> Any:
        """Await a transactional handler with the job in that session."""
        return self._await(in_hand.lane, context, session.info[_ASYNC_SESSION], job)

    def interrupt(self) -> bool:
        """Cancel all handlers that run, and those that are about to."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
        return True

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether we, and not the handler, have ended an attempt: then it is none."""
        if isinstance(error, asyncio.CancelledError):
            return self._interrupted or self.ends_at_once(error)
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether the run itself was cancelled, for the second time."""
        current = asyncio.current_task()
        cancelling = current is not None and current.cancelling() > 0
        return isinstance(error, asyncio.CancelledError) and cancelling

    def _await(self, lane: Lane[Any], context: Context, *arguments: Any) -> Any:
        if self._interrupted:
            raise Stopped
        called = context.run(lane.handler, *arguments)
        if not isawaitable(called):
            raise ArgumentError(
                f"an AsyncWorker awaits its handlers: make {lane.handler!r} async def"
            )
        if lane.timeout is not None:
            called = _within(lane.timeout, called)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await_only(InContext(called, context))
        except asyncio.CancelledError as cancelled:
            if self.was_interrupted(cancelled):
                raise
            raise RuntimeError("the handler was cancelled, and its worker was not") from cancelled
        finally:
            self._forget(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._interrupted:
            task.uncancel()  # it was the handler that was cancelled, and not its slot


async def caught(awaited: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Await a worker; return what it returned, and what it raised to end the process.

    A task that raises SystemExit or KeyboardInterrupt ends the event loop at once: the worker
    could not finish its jobs any more.
    """
    try:
        return await awaited, None
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return None, error


async def _within(timeout: timedelta, called: Awaitable[Any]) -> Any:
    """Await a handler, and cancel it at its timeout; it has failed then, whatever it returns."""
    limit = asyncio.timeout(timeout.total_seconds())
    late = HandlerTimeout(f"the handler did not end within {timeout}")
    try:
        async with limit:
            returned = await called
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise late from error
    if limit.expired():  # it has caught its CancelledError
        raise late
    return returned


class InContext:
    """Awaits something in a context of its own, without a task of its own."""

    def __init__(self, awaited: Awaitable[Any], context: Context) -> None:
        self._steps = awaited if iscoroutine(awaited) else _awaited(awaited)
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        step = partial(self._steps.send, None)
        while True:
            try:
                waits_for = self._context.run(step)
            except StopIteration as ended:
                return ended.value
            try:
                step = partial(self._steps.send, (yield waits_for))
            except BaseException as error:  # such as CancelledError: the handler is to see it
                step = partial(self._steps.throw, error)


async def _awaited(awaited: Awaitable[Any]) -> Any:
    return await awaited
