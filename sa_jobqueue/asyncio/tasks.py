"""How the worker's code waits inside of an event loop: what threads do, with tasks.

It runs in a greenlet, as all of SQLAlchemy does behind an AsyncSession; where it
waits, the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

R = TypeVar("R")


class Flag:
    """A flag that may be set by other threads and by signal handlers, too."""

    def __init__(self) -> None:
        self._set = False
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Set it, for good."""
        self._set = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told.set)

    def is_set(self) -> bool:
        """Tell whether it was set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, so many seconds at most; tell whether it is."""
        # For each loop an event of its own: one worker may have several runs.
        told = self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._set:
            await_only(_within(timeout, told.wait()))
        return self._set


class Condition:
    """A condition among the tasks of one loop: whoever runs is alone until it waits."""

    def __init__(self) -> None:
        self._notice = asyncio.Event()

    def __enter__(self) -> None:
        """Be alone, as it is."""

    def __exit__(self, *_: object) -> None:
        """Let others, who have their turn when this one waits."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a notice, so many seconds at most."""
        await_only(_within(timeout, self._notice.wait()))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for a notice that makes this true, so many seconds at most."""
        await_only(_within(timeout, self._noticed(predicate)))

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._notice.set()
        self._notice = asyncio.Event()

    async def _noticed(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._notice.wait()


class Companion:
    """A task that does something beside."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._task = asyncio.create_task(greenlet_spawn(work), name=name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, so many seconds at most; then it is cancelled."""
        await_only(self._joined(timeout))

    async def _joined(self, timeout: float | None) -> None:
        await asyncio.wait({self._task}, timeout=timeout)
        self._task.cancel()


class Tasks:
    """Waiting as tasks do."""

    def flag(self) -> Flag:
        """Make a flag."""
        return Flag()

    def condition(self) -> Condition:
        """Make a condition."""
        return Condition()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        await_only(asyncio.sleep(seconds))

    def beside(self, work: Callable[[], None], *, name: str) -> Companion:
        """Start a task."""
        return Companion(work, name)

    def apart(self, work: Callable[[], R]) -> R:
        """Do it in a thread: a synchronous driver would keep the loop waiting."""
        return await_only(asyncio.to_thread(work))


async def _within(seconds: float | None, awaited: Coroutine[Any, Any, object]) -> None:
    """Wait for something, and no longer."""
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        pass
