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
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from inspect import isawaitable, isroutine
from types import CoroutineType, coroutine
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..ages import duration_text
from ..errors import ArgumentError, HandlerTimeout
from ..fence.claim import Claim
from ..process import Background, Flag, Runtime, function_name
from ..queue import JobQueue
from ..worker import Done, Lane, Outcome, Worker
from ..worker.crew import Crew, Loop, Turn
from ..worker.handlers import GIVEN, Attempt, Calls, Undone
from ..worker.lanes import Finished, NotDone
from ..worker.transactions import Stopped
from ..worker.worker import T
from .verbs import AsyncJobQueue

AsyncBind: TypeAlias = "AsyncEngine | async_sessionmaker[Any]"

AsyncHandler = Callable[[T], Coroutine[Any, Any, Done | NotDone | None]]


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

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted = False

    @staticmethod
    def plain_sessions(engine: Engine) -> Callable[[], Session]:
        """Return what opens the sessions within AsyncSessions."""
        return SyncSessions(async_sessionmaker(AsyncEngine(engine)))

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

    def call(
        self, lane: Lane[Any], context: Context, jobs: Sequence[Any], *session: Any
    ) -> Sequence[Finished | Undone] | None:
        """Await a handler, and return the outcomes of its jobs."""
        return await_only(self.awaited(lane, context, jobs, *session))

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

    async def awaited(
        self, lane: Lane[Any], context: Context, jobs: Sequence[Any], *session: Any
    ) -> Sequence[Finished | Undone] | None:
        """Await the handler of a lane, and return the outcomes of its jobs.

        Raises:
            Stopped: the worker interrupts its handlers.
            ArgumentError: what the handler has returned cannot be awaited, or is no outcome.
            BaseException: what the handler raised.
        """
        if self._interrupted:
            raise Stopped
        called = context.run(lane.handler, *session, [*jobs] if lane.batch else jobs[0])
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
        return None if returned is None else lane.outcomes_of(returned, jobs)


async def _within_time(lane: Lane[Any], called: Any) -> Any:
    """Await what a handler has returned, and cancel it at its timeout.

    It has failed then, whatever it returns.

    Raises:
        ArgumentError: it cannot be awaited.
    """
    if not isawaitable(called):
        name = function_name(lane.handler)
        raise ArgumentError(f"an AsyncWorker awaits its handlers: make {name} async def")
    limit = asyncio.timeout(None if lane.timeout is None else lane.timeout.total_seconds())
    try:
        async with limit:
            returned = await called
        if limit.expired():  # it has caught its CancelledError
            raise TimeoutError
    except TimeoutError as error:
        if lane.timeout is None or not limit.expired():
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
            await_only(_at_most(timeout, self._noticed))
        return self._set


class Condition(nullcontext[None]):
    """A condition among the tasks of one loop; no lock, since a task runs alone until it waits."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()
        self._notice = asyncio.Event()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a notice, at most so many seconds."""
        await_only(_at_most(timeout, self._notice))

    def notify(self, n: int = 1) -> None:
        """Wake all who wait: they look again, and cost little."""
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._notice.set()
        self._notice = asyncio.Event()


class BackgroundTask:
    """A task that runs in the background."""

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.create_task(work, name=name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds; then cancel it."""
        try:
            await_only(asyncio.wait({self._task}, timeout=timeout))
        finally:
            self._task.cancel()


def _run_blocking(work: Callable[[], Any]) -> Any:
    """Run work in a thread of its own: those of the loop may all wait for silent databases."""
    apart, run = ThreadPoolExecutor(1), copy_context().run
    try:
        return await_only(asyncio.get_running_loop().run_in_executor(apart, run, work))
    finally:
        apart.shutdown(wait=False)


async def _at_most(seconds: float | None, event: asyncio.Event) -> None:
    """Await an event, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


#: The Runtime of an event loop's tasks. Its locks keep no task out: no other task runs until this
#: one waits.
TASKS = Runtime(
    flag=AwaitedFlag,
    lock=nullcontext,
    condition=Condition,
    sleep=lambda seconds: await_only(asyncio.sleep(seconds)),
    start=lambda work, *, name: BackgroundTask(greenlet_spawn(work), name),
    run_blocking=_run_blocking,
)


class AwaitedCrew(Crew):
    """The tasks of one run. A task runs alone until it waits, so it needs no lock."""

    def _start_slot(self, name: str) -> Background:
        return BackgroundTask(self._await_in_slot(), name)

    async def _await_in_slot(self) -> None:
        """Do turns, and await handlers, until the run ends; as a slot in a thread does."""
        handled = None
        calls: Any = self.calls
        while True:
            self.put_handled(handled)
            while (step := self.next_step()) is None:
                if self.ended:
                    return
                await greenlet_spawn(self.slot_is_needed.wait)
            if isinstance(step, Turn) or step[0].lane.transactional:
                handled = await greenlet_spawn(self.do, step)
                continue
            handled, jobs = step, [each.job for each in step]
            try:
                with Attempt(calls, step) as attempt:
                    lane = step[0].lane
                    attempt.outcomes = await calls.awaited(lane, attempt.context, jobs)
            except BaseException as error:
                handled = self.end_by_handler(error, step)


@dataclass(eq=False, repr=False)
class AsyncWorker(Worker[T]):
    """A loop over one queue or several, or over steps of a workflow; its handlers are awaited.

    The arguments are those of :class:`sa_jobqueue.worker.Worker`, with these differences:

    Args:
        engine: an AsyncEngine or an async_sessionmaker; for several databases a mapping of them,
            or a function that returns one, plain or ``async def``.
        queue: a JobQueue or an AsyncJobQueue, or several; a Workflow, or one or several steps.
        handler: ``async def``; called with each job. The handlers of a workflow's
            steps are ``async def`` too.
        concurrency: how many handlers run at once, each in a task of its own.
        grace: handlers that run for longer after :meth:`stop` are cancelled, and their jobs
            released.
        on_claim: a plain function, or ``async def``.
        on_outcome: a plain function, or ``async def``.

    Raises:
        ArgumentError: neither AsyncEngine nor async_sessionmaker, a handler that is a plain
            function, two queues with the same jobs, or a strategy whose claims write nothing.
    """

    engine: (  # type: ignore[assignment]  # the rest awaits
        AsyncBind
        | Mapping[str, AsyncBind]
        | Callable[[], Mapping[str, AsyncBind] | Awaitable[Mapping[str, AsyncBind]]]
    )
    queue: (  # type: ignore[assignment]
        JobQueue[T]
        | AsyncJobQueue[T]
        | Lane[T]
        | Iterable[JobQueue[Any] | AsyncJobQueue[Any] | Lane[Any]]
    )
    handler: AsyncHandler[T] | None = None  # type: ignore[assignment]
    _: KW_ONLY
    on_claim: Callable[[Claim[T]], Awaitable[None] | None] | None = None  # type: ignore[assignment]
    on_outcome: Callable[[T, Outcome], Awaitable[None] | None] | None = None  # type: ignore[assignment]

    _runtime = TASKS
    _crew_kind = AwaitedCrew
    _calls_kind = AwaitedCalls
    _calls: AwaitedCalls = field(init=False)

    def __post_init__(self) -> None:
        own: Any = self  # from here on they have the types of a Worker
        own.queue = sync_queues(own.queue)
        own.on_claim, own.on_outcome = _in_greenlet(own.on_claim), _in_greenlet(own.on_outcome)
        if isroutine(own.engine) or isinstance(own.engine, partial):
            own.engine = partial(_in_greenlet(own.engine))
        super().__post_init__()
        if isinstance(own.engine, Engine):
            own.engine = AsyncEngine(own.engine)

    @staticmethod
    def _bind_within(given: Any) -> Engine | sessionmaker[Any]:
        if not isinstance(given, AsyncEngine | async_sessionmaker):
            raise ArgumentError(
                f"an AsyncWorker needs an AsyncEngine, or an async_sessionmaker, not {given!r}: it "
                "opens its own sessions, so give it the engine or the async_sessionmaker of yours; "
                "for a synchronous engine use Worker"
            )
        return given.sync_engine if isinstance(given, AsyncEngine) else SyncSessions(given)

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

    def _notify(self, loop: Loop | None = None) -> None:
        events = None if self._calls.caller is None else self._calls.caller.get_loop()
        if events is not None and not events.is_closed():
            events.call_soon_threadsafe(super()._notify, loop)


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


def _in_greenlet(callback: Callable[..., Any] | None) -> Any:
    """Make a plain function of a callback, which may be ``async def``."""
    if callback is None:
        return None

    def call(*args: Any) -> Any:
        result = callback(*args)
        return await_only(result) if isawaitable(result) else result

    return call
