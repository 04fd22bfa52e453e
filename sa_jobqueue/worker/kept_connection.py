"""The connection of a worker's turns, which stays checked out from one turn to the next.

A pool resets a connection that it gets back: with PyMySQL, asyncmy and aiosqlite that is a round
trip for each turn, and elsewhere a tenth of a turn's Python. While turns follow each other closely
they share a connection. An idle worker holds none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from ..sessions.transactions import connect

R = TypeVar("R")

#: For how long a connection is kept, in seconds: so a pool that pings, recycles or prepares its
#: connections does so once in that time.
KEPT_FOR = 1.0


@dataclass(eq=False)
class _Kept:
    """A connection, and the session that the turns use on it."""

    connection: Connection
    session: Session = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.session = Session(self.connection, expire_on_commit=False)

    @property
    def until(self) -> float:
        """When it goes back to the pool, by time.monotonic()."""
        return self.since + KEPT_FOR


class KeptConnection:
    """Run turns on a connection that is kept; as a chore, give it back in time.

    Turns run one after the other, in whatever thread. A turn that finds none connects.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._free: list[_Kept] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def use(self, work: Callable[[Session], R]) -> R:
        """Call `work` with a session on the connection; keep the connection if it succeeds."""
        kept = self._take()
        try:
            result = work(kept.session)
        except BaseException:
            kept.connection.close()  # the pool resets it, or connects again
            raise
        self._free.append(kept)
        return result

    def let_go(self) -> None:
        """Give the connection back to the pool."""
        while (kept := self._pop()) is not None:
            kept.connection.close()

    @property
    def due_at(self) -> float:
        """When it is due to be given back, by time.monotonic(); infinity: there is none."""
        return min((kept.until for kept in tuple(self._free)), default=math.inf)

    def run(self) -> None:
        """Give the connection back, as a chore."""
        self.let_go()

    def _take(self) -> _Kept:
        kept = self._pop()
        if kept is not None:
            if time.monotonic() < kept.until:
                return kept
            kept.connection.close()
        return _Kept(connect(self._engine))

    def _pop(self) -> _Kept | None:
        try:
            return self._free.pop()
        except IndexError:
            return None
