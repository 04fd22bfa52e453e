"""The connection of a worker's turns, which stays checked out from one turn to the next.

A pool resets a connection that it gets back: with PyMySQL, asyncmy and aiosqlite that is a round
trip for each turn, and elsewhere a tenth of a turn's Python. While turns follow each other closely
they share a connection. An idle worker gives it back after a second.
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

    engine: Engine
    connection: Connection = field(init=False)
    session: Session = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._pool = self.engine.pool
        self.connection = connect(self.engine)
        self.session = Session(self.connection, expire_on_commit=False)

    @property
    def until(self) -> float:
        """When it goes back to the pool, by time.monotonic()."""
        return self.since + KEPT_FOR

    @property
    def is_good(self) -> bool:
        """Whether another turn may use it."""
        return self._is_of_engine and time.monotonic() < self.until

    def close(self) -> None:
        """Give it back to the pool, which resets it."""
        if not self._is_of_engine:  # nobody would close it any more
            self.connection.invalidate()
        self.connection.close()

    @property
    def _is_of_engine(self) -> bool:
        """Whether the engine was not disposed of meanwhile, and so has another pool."""
        return self.engine.pool is self._pool


class KeptConnection:
    """Run turns on a connection that is kept; as a chore, give it back in time.

    Turns run one after the other, in whatever thread. A turn that finds none connects.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._free: list[_Kept] = []
        self._is_over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.let_go()

    def use(self, work: Callable[[Session], R]) -> R:
        """Call `work` with a session on the connection; keep the connection if it succeeds."""
        kept = self._take()
        try:
            result = work(kept.session)
        except BaseException:
            kept.close()
            raise
        self._put_back(kept)
        return result

    def let_go(self) -> None:
        """Give the connection back to the pool."""
        while (kept := self._pop()) is not None:
            kept.close()

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
            if kept.is_good:
                return kept
            kept.close()
        return _Kept(self._engine)

    def _put_back(self, kept: _Kept) -> None:
        self._free.append(kept)
        if self._is_over:  # the run has ended without us, as it does if a handler never ends
            self.let_go()

    def _pop(self) -> _Kept | None:
        try:
            return self._free.pop()
        except IndexError:
            return None
