"""The Runtime of an event loop: its tasks do what threads do for a plain worker.

The worker's code runs in a greenlet, as SQLAlchemy's does behind an AsyncSession. While it waits,
the event loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

R = TypeVar("R")


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
            await_only(_within(timeout, self._noticed.wait()))
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
        await_only(_within(timeout, self._notice.wait()))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for a notice that makes the predicate true, at most so many seconds."""
        self._loop = asyncio.get_running_loop()
        await_only(_within(timeout, self._noticed(predicate)))

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


async def _within(seconds: float | None, awaited: Coroutine[Any, Any, object]) -> None:
    """Await something, at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        pass
