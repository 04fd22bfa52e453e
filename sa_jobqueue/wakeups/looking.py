"""MySQL, MariaDB, and whatever tells nothing: a connection to look with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine

from ..dialects.connections import Calls, calls_for, connected_apart
from .source import Pause

R = TypeVar("R")


class Looking:
    """Never tells of anything.

    Args:
        often: look often for some time after the last job.
    """

    tells = False
    rings = False

    def __init__(self, engine: Engine, *, often: bool = True) -> None:
        self.often = often
        self._engine = engine
        self._connection: Connection
        self._calls: Calls

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected, outside of the pool and in AUTOCOMMIT."""
        self._calls = calls_for(self._engine)
        try:
            connected = connected_apart(self._engine)
            self._connection = self._calls.run(connected.__enter__)
            try:
                yield
            finally:
                self._calls.run(partial(connected.__exit__, None, None, None))
        finally:
            self._calls.close()

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait."""
        pause(seconds)
        return False

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Read something."""
        return self._calls.run(lambda: question(self._connection))
