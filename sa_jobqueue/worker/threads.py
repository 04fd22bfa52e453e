"""How a worker waits, and has something done beside itself: with threads.

:mod:`sa_jobqueue.asyncio` has the same with the tasks of an event loop. So there
is one worker and one heartbeat, and neither knows what it runs in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class Flag(Protocol):
    """What one sets for good, from anywhere, and another waits for; as threading.Event."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Condition(Protocol):
    """Inside of ``with`` nobody else changes anything, but for waiting; as threading.Condition."""

    def __enter__(self) -> object: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...
    def wait(self, timeout: float | None = None) -> object: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> object: ...
    def notify_all(self) -> None: ...


class Companion(Protocol):
    """What is being done beside; as threading.Thread."""

    def join(self, timeout: float | None = None) -> None: ...


class Waiting(Protocol):
    """One way to wait, and to have something done beside.

    Of its methods ``apart`` does something with a synchronous driver, and waits
    for it; the others do what their names say.
    """

    def flag(self) -> Flag: ...
    def condition(self) -> Condition: ...
    def sleep(self, seconds: float) -> None: ...
    def beside(self, work: Callable[[], None], *, name: str) -> Companion: ...
    def apart(self, work: Callable[[], R]) -> R: ...


class Threads:
    """Waiting as threads do."""

    def flag(self) -> threading.Event:
        """Make a flag."""
        return threading.Event()

    def condition(self) -> threading.Condition:
        """Make a condition."""
        return threading.Condition()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def beside(self, work: Callable[[], None], *, name: str) -> threading.Thread:
        """Start a thread, which ends with the process."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def apart(self, work: Callable[[], R]) -> R:
        """Do it here."""
        return work()


THREADS = Threads()
