"""How an AsyncWorker calls handlers, in the task of their slot, and the Runtime of an event loop.

Its tasks do what threads do for a plain worker. The worker's code runs in a greenlet, as
SQLAlchemy's does behind an AsyncSession. While it waits, the event loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from inspect import isawaitable
from types import CoroutineType, coroutine
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..ages import duration_text
from ..errors import ArgumentError, HandlerTimeout
from ..process import function_name
from ..worker import Lane
from ..worker.handlers import Calls
from ..worker.in_hand import InHand
from ..worker.transactions import Stopped

R = TypeVar("R")


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
        self._caller: asyncio.Task[Any] | None = None
        self._cancelled_before = 0

    def note_caller(self) -> None:
        """Note the task that awaits the run: whoever cancels it cancels the run."""
        self._caller = asyncio.current_task()
        self._cancelled_before = 0 if self._caller is None else self._caller.cancelling()

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse plain functions; of other handlers only a call tells what they return.

        Raises:
            ArgumentError: it names the handler.
        """
        for lane in lanes:
            if lane.transactional and not lane.is_async:
                raise ArgumentError(
                    f"{function_name(lane.handler)} is transactional, and an AsyncWorker gives "
                    "it an AsyncSession: make it async def, or use a Worker on a synchronous engine"
                )
            if lane.is_plain:
                raise ArgumentError(
                    f"{function_name(lane.handler)} is a plain function, and an AsyncWorker awaits "
                    "its handlers: make it async def, or use a Worker on a synchronous engine"
                )

    def call(self, in_hand: InHand[Any], context: Context) -> Any:
        """Await the handler with the job, and return what it returns."""
        return await_only(self.awaited(in_hand.lane, context, in_hand.job))

    def call_in(self, session: Session, in_hand: InHand[Any], context: Context, job: Any) -> Any:
        """Await a transactional handler with the job in that session."""
        return await_only(self.awaited(in_hand.lane, context, session.info[_ASYNC_SESSION], job))

    def interrupt(self) -> bool:
        """Cancel all handlers that run, and those that are about to."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
        return True

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether we, and not the handler, have ended an attempt: then it is none."""
        if isinstance(error, asyncio.CancelledError):
            return self._interrupted or self._run_is_cancelled
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether the run itself was cancelled, for the second time."""
        return isinstance(error, asyncio.CancelledError) and self._run_is_cancelled

    @property
    def _run_is_cancelled(self) -> bool:
        """Whether the task that awaits the run was cancelled.

        A handler may cancel the task that it runs in, which says nothing of the run. At its end,
        asyncio.run() cancels all tasks before the first of them notices.
        """
        caller = self._caller
        return caller is not None and caller.cancelling() > self._cancelled_before

    async def awaited(self, lane: Lane[Any], context: Context, *arguments: Any) -> Any:
        """Await the handler of a lane.

        Raises:
            Stopped: the worker interrupts its handlers.
            ArgumentError: what the handler has returned cannot be awaited.
            BaseException: what the handler raised.
        """
        if self._interrupted:
            raise Stopped
        called = context.run(lane.handler, *arguments)
        if not isinstance(called, CoroutineType):
            called = _coroutine_of(called, lane)
        if lane.timeout is not None:
            called = _within(lane.timeout, called)
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        self._tasks.add(task)
        try:
            return await in_context(called, context)
        except asyncio.CancelledError as cancelled:
            if self.was_interrupted(cancelled):
                raise
            raise RuntimeError("the handler was cancelled, and its worker was not") from cancelled
        finally:
            self._tasks.discard(task)
            if task is not self._caller and task.cancelling() > cancelled_before:
                await _uncancelled(task, cancelled_before)


async def _uncancelled(task: asyncio.Task[Any], before: int) -> None:
    """Forget that the handler of a task was cancelled, or has cancelled the task: it goes on."""
    while task.cancelling() > before:
        task.uncancel()
    with suppress(asyncio.CancelledError):  # the handler may have ended before it came
        await asyncio.sleep(0)


def _coroutine_of(called: Any, lane: Lane[Any]) -> Coroutine[Any, Any, Any]:
    """Return a coroutine that awaits what a handler has returned.

    Raises:
        ArgumentError: it cannot be awaited.
    """
    if not isawaitable(called):
        name = function_name(lane.handler)
        raise ArgumentError(f"an AsyncWorker awaits its handlers: make {name} async def")
    return _awaited(called)


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
    late = HandlerTimeout(f"the handler did not end within {duration_text(timeout)}")
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


@coroutine
def in_context(steps: Coroutine[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    """Await a coroutine in a context of its own, without a task of its own."""
    run = context.run
    try:
        waits_for = run(steps.send, None)
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # such as CancelledError: the handler is to see it
                waits_for = run(steps.throw, error)
            else:
                waits_for = run(steps.send, value)
    except StopIteration as ended:
        return ended.value


async def _awaited(awaited: Awaitable[Any]) -> Any:
    return await awaited


class Flag:
    """A flag that other threads and signal handlers may set, too."""

    def __init__(self) -> None:
        self._set = False
        self._noticed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Set the flag, for good."""
        self._set = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._noticed.set)

    def is_set(self) -> bool:
        """Tell whether the flag is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most so many seconds; tell whether it is."""
        # An Event belongs to one loop, and a worker may run in several, one after the other.
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._noticed = loop, asyncio.Event()
        if not self._set:
            await_only(_at_most(timeout, self._noticed.wait()))
        return self._set


class Lock:
    """Keeps no task out: no other task runs until this one waits."""

    def __enter__(self) -> None:
        """Do nothing: no other task runs anyhow."""

    def __exit__(self, *_: object) -> None:
        """Do nothing: other tasks run when this one waits."""


class Condition(Lock):
    """A condition among the tasks of one loop."""

    def __init__(self) -> None:
        self._notice = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a notice, at most so many seconds."""
        self._loop = asyncio.get_running_loop()
        await_only(_at_most(timeout, self._notice.wait()))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for a notice that makes the predicate true, at most so many seconds."""
        self._loop = asyncio.get_running_loop()
        await_only(_at_most(timeout, self._noticed(predicate)))

    def notify(self, n: int = 1) -> None:
        """Wake all who wait: they look again, and cost little."""
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all who wait; other threads may call it, too."""
        if self._loop is not None and not _runs(self._loop):
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.notify_all)
            return
        self._notice.set()
        self._notice = asyncio.Event()

    async def _noticed(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._notice.wait()


class Background:
    """A task that runs in the background."""

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.create_task(work, name=name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds; then cancel it."""
        await_only(self._joined(timeout))

    async def _joined(self, timeout: float | None) -> None:
        try:
            await asyncio.wait({self._task}, timeout=timeout)
        finally:
            self._task.cancel()


class Tasks:
    """The Runtime of an event loop's tasks."""

    def flag(self) -> Flag:
        """Make a flag."""
        return Flag()

    def lock(self) -> Lock:
        """Make a lock."""
        return Lock()

    def condition(self, lock: Any = None) -> Condition:
        """Make a condition."""
        return Condition()

    def sleep(self, seconds: float) -> None:
        """Let other tasks run for so many seconds."""
        await_only(asyncio.sleep(seconds))

    def start(self, work: Callable[[], None], *, name: str) -> Background:
        """Start a task."""
        return Background(greenlet_spawn(work), name)

    def run_blocking(self, work: Callable[[], R]) -> R:
        """Run the work in a thread: a synchronous driver would block the loop."""
        return await_only(asyncio.to_thread(work))


def _runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether a loop runs in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs here
        return False


async def _at_most(seconds: float | None, awaited: Coroutine[Any, Any, object]) -> None:
    """Await something, at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        pass
