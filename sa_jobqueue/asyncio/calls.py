"""How an AsyncWorker calls handlers, in the task of their slot, and the Runtime of an event loop.

Its tasks do what threads do for a plain worker. The worker's code runs in a greenlet, as
SQLAlchemy's does behind an AsyncSession. While it waits, the event loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context
from inspect import isawaitable
from types import CoroutineType, coroutine
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..ages import duration_text
from ..errors import ArgumentError, HandlerTimeout
from ..process import Flag, Runtime, function_name
from ..worker.handlers import GIVEN, Calls
from ..worker.lanes import Lane
from ..worker.transactions import Stopped


class SyncSessions(sessionmaker[Any]):
    """Opens the synchronous sessions inside of those of an async_sessionmaker."""

    def __init__(self, maker: async_sessionmaker[Any]) -> None:
        super().__init__()
        self._maker = maker

    def __call__(self, **options: Any) -> Any:
        opened = self._maker(**options)
        opened.sync_session.info[GIVEN] = opened
        return opened.sync_session


class AwaitedCalls(Calls):
    """Await handlers, and cancel them where they take too long.

    Attributes:
        caller: the task that awaits the run, once it does: who cancels it cancels the run.
    """

    keeps_timeouts = True
    caller: asyncio.Task[Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    def _plain_sessions(self) -> Callable[[], Session]:
        return SyncSessions(async_sessionmaker(AsyncEngine(self.transactions.engine)))

    def note_caller(self) -> None:
        """Note the task that awaits the run."""
        self.caller = asyncio.current_task()
        self._cancelled_before = 0 if self.caller is None else self.caller.cancelling()

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse plain functions; of other handlers only a call tells what they return.

        Raises:
            ArgumentError: it names the handler.
        """
        for part in (part for lane in lanes for part in lane.parts):
            if part.is_plain or (part.transactional and not part.is_async):
                raise ArgumentError(
                    f"{function_name(part.handler)} is not async def, and an AsyncWorker awaits "
                    "its handlers: make it async def, or use a Worker on a synchronous engine"
                )

    def call(self, lane: Lane[Any], context: Context, *arguments: Any) -> Any:
        """Await a handler, and return the outcome of its job."""
        return await_only(self.awaited(lane, context, *arguments))

    def interrupt(self) -> bool:
        """Cancel all handlers that run, and those that are about to."""
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
        return True

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether we, and not the handler, have ended an attempt: then it is none."""
        cancelled = isinstance(error, asyncio.CancelledError) and self._interrupted
        return cancelled or super().was_interrupted(error) or self.ends_at_once(error)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether an error comes of a cancellation of the run itself.

        A handler may cancel the task that it runs in, which says nothing of the run. At its end,
        asyncio.run() cancels all tasks before the first of them notices. The supervisor gets the
        second cancellation only.
        """
        caller = self.caller
        is_cancelled = caller is not None and caller.cancelling() > self._cancelled_before
        return is_cancelled and isinstance(error, asyncio.CancelledError)

    async def awaited(self, lane: Lane[Any], context: Context, *arguments: Any) -> Any:
        """Await the handler of a lane, and return the outcome of its job.

        Raises:
            Stopped: the worker interrupts its handlers.
            ArgumentError: what the handler has returned cannot be awaited, or is no outcome.
            BaseException: what the handler raised.
        """
        if self._interrupted:
            raise Stopped
        called = context.run(lane.handler, *arguments)
        if lane.timeout is not None or not isinstance(called, CoroutineType):
            called = _within_time(lane, called)
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        self._tasks.add(task)
        try:
            returned = await in_context(called, context)
        except asyncio.CancelledError as cancelled:
            if self.was_interrupted(cancelled):
                raise
            raise RuntimeError("the handler was cancelled, and its worker was not") from cancelled
        finally:
            self._tasks.discard(task)
            if task is not self.caller and task.cancelling() > cancelled_before:
                # The handler was cancelled, or has cancelled the task, which goes on.
                while task.uncancel() > cancelled_before:
                    pass
                with suppress(asyncio.CancelledError):  # it may have ended before that came
                    await asyncio.sleep(0)
        return None if returned is None else lane.outcome_of(returned)


async def _within_time(lane: Lane[Any], called: Any) -> Any:
    """Await what a handler has returned, and cancel it at its timeout.

    It has failed then, whatever it returns.

    Raises:
        ArgumentError: it cannot be awaited.
    """
    if not isawaitable(called):
        name = function_name(lane.handler)
        raise ArgumentError(f"an AsyncWorker awaits its handlers: make {name} async def")
    if lane.timeout is None:
        return await called
    limit = asyncio.timeout(lane.timeout.total_seconds())
    try:
        async with limit:
            returned = await called
        if limit.expired():  # it has caught its CancelledError
            raise TimeoutError
    except TimeoutError as error:
        if not limit.expired():
            raise
        late = f"the handler did not end within {duration_text(lane.timeout)}"
        raise HandlerTimeout(late) from error
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


class AwaitedFlag(Flag):
    """A flag that tasks wait for, and that other threads and signal handlers may set, too."""

    _loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Set the flag, for good."""
        self._set = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._noticed.set)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most so many seconds; tell whether it is."""
        # An Event belongs to one loop, and a worker may run in several, one after the other.
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._noticed, self._loop = asyncio.Event(), loop
        if not self._set:
            await_only(_at_most(timeout, self._noticed.wait()))
        return self._set


class Condition(nullcontext[None]):
    """A condition among the tasks of one loop; no lock, since a task runs alone until it waits."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()
        self._notice = asyncio.Event()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a notice, at most so many seconds."""
        await_only(_at_most(timeout, self._notice.wait()))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for a notice that makes the predicate true, at most so many seconds."""
        await_only(_at_most(timeout, self._noticed(predicate)))

    async def _noticed(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._notice.wait()

    def notify(self, n: int = 1) -> None:
        """Wake all who wait: they look again, and cost little."""
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._notice.set()
        self._notice = asyncio.Event()


class Background:
    """A task that runs in the background."""

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.create_task(work, name=name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds; then cancel it."""
        try:
            await_only(asyncio.wait({self._task}, timeout=timeout))
        finally:
            self._task.cancel()


async def _at_most(seconds: float | None, awaited: Coroutine[Any, Any, object]) -> None:
    """Await something, at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        pass


#: The Runtime of an event loop's tasks. Its locks keep no task out: no other task runs until this
#: one waits.
TASKS = Runtime(
    flag=AwaitedFlag,
    lock=nullcontext,
    condition=Condition,
    sleep=lambda seconds: await_only(asyncio.sleep(seconds)),
    start=lambda work, *, name: Background(greenlet_spawn(work), name),
    run_blocking=lambda work: await_only(asyncio.to_thread(work)),
)
