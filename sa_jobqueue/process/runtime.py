"""How code waits and runs other code beside itself: a Runtime, and here its threads.

:mod:`sa_jobqueue.asyncio` has another Runtime, of an event loop's tasks. So there is one worker
and one heartbeat, and neither knows what it runs in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class Flag(Protocol):
    """Set once from anywhere, and waited for; as threading.Event."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Condition(Protocol):
    """Within ``with`` only we change anything, except during a wait; as threading.Condition."""

    def __enter__(self) -> object: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...
    def wait(self, timeout: float | None = None) -> object: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> object: ...
    def notify_all(self) -> None: ...


class Background(Protocol):
    """Work that runs in the background; as threading.Thread."""

    def join(self, timeout: float | None = None) -> None: ...


class Runtime(Protocol):
    """What a worker runs in: threads, or the tasks of an event loop.

    ``start`` runs work in the background. ``run_blocking`` runs work that waits for a
    synchronous driver, and returns its result.
    """

    def flag(self) -> Flag: ...
    def condition(self) -> Condition: ...
    def sleep(self, seconds: float) -> None: ...
    def start(self, work: Callable[[], None], *, name: str) -> Background: ...
    def run_blocking(self, work: Callable[[], R]) -> R: ...


class Threads:
    """The Runtime of threads."""

    def flag(self) -> threading.Event:
        """Make a flag."""
        return threading.Event()

    def condition(self) -> threading.Condition:
        """Make a condition."""
        return threading.Condition()

    def sleep(self, seconds: float) -> None:
        """Block this thread for so many seconds."""
        time.sleep(seconds)

    def start(self, work: Callable[[], None], *, name: str) -> threading.Thread:
        """Start a thread, which ends with the process."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def run_blocking(self, work: Callable[[], R]) -> R:
        """Run the work in this thread."""
        return work()


THREADS = Threads()
