"""A clock that a test lets jump ahead: minutes of patience pass at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support import until

_monotonic = time.monotonic


class Clock:
    """What a test puts in the place of time.monotonic().

    Whoever waits in a lock or in a socket still waits in real time. An Owner would take a jump for
    the silence of its server: let workers have plain names.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return _monotonic() + self.ahead

    def jump(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.ahead += seconds

    def jump_until(self, true: Callable[[], object]) -> None:
        """Let the time pass quickly, until something has happened."""

        def is_true() -> object:
            self.jump(10)
            return true()

        until(is_true)
