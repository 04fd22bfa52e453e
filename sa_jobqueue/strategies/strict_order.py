"""strict_order: no job is claimed while a sooner one is to be had; one claimer at a time.

::

    JobQueue(Email, strict_order=True)

The other strategies pass over what somebody else has locked, so a claim that
is rolled back leaves a job behind that later ones have overtaken. Here the
next claimer waits for the end of the transaction instead: each database by
what ends with it, and never sooner. On PostgreSQL that is an advisory lock of
the transaction, elsewhere the locks of the next row, on SQLite the write lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from itertools import takewhile
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError

from ..dialects import Database
from ..errors import LockTimeout, UnsupportedDatabase
from ..model.keys import keys_of
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer
from .base import Strategy
from .candidates import Candidates
from .compare_and_set import CompareAndSet
from .spec import ClaimSpec, Request, Taken
from .update_then_select import UpdateThenSelect

#: How long to wait before looking again at a row that somebody has locked.
SHORTEST_PAUSE = timedelta(milliseconds=1)
LONGEST_PAUSE = timedelta(milliseconds=25)


class StrictOrder(Strategy):
    """What holds on every database: a transaction is needed, and waiting has a limit."""

    name = "strict_order"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._means = _means(database)(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        # Where no claim is safe at all, _means() has more to say.
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.in_autocommit:
            raise UnsupportedDatabase(
                "strict_order keeps others waiting until the claim's transaction ends, and an "
                "AUTOCOMMIT connection has none; use a session without AUTOCOMMIT"
            )
        with _limited(self.mapping, self.database):
            return self._means.take(writer, request)

    def statements(self) -> list[Executable]:
        return self._means.statements()


def _means(database: Database) -> type[Strategy]:
    """Choose what keeps the order on a database."""
    if database.skip_locked:
        return InOrder
    if database.one_writer and database.update_returning:
        return CompareAndSet  # the write lock is taken by its first statement
    if database.ordered_update:
        return UpdateThenSelect  # it walks in order, and waits for what is locked
    raise UnsupportedDatabase(
        f"{database} has none of the means by which a claim is safe (SKIP LOCKED, "
        "UPDATE .. ORDER BY .. LIMIT, or one writer at a time)"
    )


@contextmanager
def _limited(mapping: QueueMapping, database: Database) -> Iterator[None]:
    """Say it in one way on every database when the wait for a lock was too long."""
    try:
        yield
    except DBAPIError as error:
        causes = () if error.orig is None else (error.orig, error.orig.__cause__)
        if not any(database.is_lock_timeout(cause) for cause in causes if cause is not None):
            raise
        raise _timeout(mapping) from error


def _timeout(mapping: QueueMapping) -> LockTimeout:
    return LockTimeout(
        f"the turn to claim {mapping} in strict order did not come in time: another transaction "
        "that claimed, or that changed the next job, is still open. Roll back and claim again"
    )


class InOrder(Candidates):
    """See the next jobs, lock the first of them, and whatever follows it unbroken."""

    # Why it is not simply the locking read without SKIP LOCKED. A locking read
    # that waited goes on from where it stood: sooner jobs that were committed
    # meanwhile are behind it, and on PostgreSQL a job that was moved back meanwhile
    # is taken all the same. So nothing is taken after a wait without a new look.
    #
    # And why InnoDB does not wait by a locking read of that one row. The lock of a
    # read that waited stays until the transaction ends, also when the row does
    # not match any more and under READ COMMITTED too (seen on MySQL 9.7 and MariaDB
    # 10.11): whoever waited for a job's claim then stood in the way of its finish.
    # A second look after a millisecond holds nothing, and cannot deadlock.

    name = "strict_order"

    def take(self, writer: Writer, request: Request) -> Taken:
        self._await_turn(writer)
        if self._turn is not None or writer.sees_commits:  # who had the turn has asked
            locked = self._lock_next(writer, request)
        else:
            # What a plain read shows is old, or not committed; only a locking read will do.
            locked = self._lock_waiting(writer, request)
        return self.mark_locked(writer, request, locked)

    def statements(self) -> list[Executable]:
        turn = [] if self._turn is None else [self._turn]
        steps = [self.first_step] if self.spec.steps else []
        return [*turn, *steps, self.draw, self.lock_first, self.lock_candidates, self.mark]

    @cached_property
    def _turn(self) -> Executable | None:
        return self.database.claim_lock(self.mapping.table)

    def _await_turn(self, writer: Writer) -> None:
        """Wait for the lock that one claimer has, in a statement before the claim's snapshot."""
        if self._turn is None:
            return
        keeps_snapshot = writer.core(self._turn).scalar()
        if keeps_snapshot:
            raise UnsupportedDatabase(
                "strict_order must see what the claimer before it has committed, and an isolation "
                "level above READ COMMITTED does not show it; begin the transaction as READ "
                'COMMITTED, as with create_engine(.., isolation_level="READ COMMITTED")'
            )

    def _lock_next(self, writer: Writer, request: Request) -> list[Any]:
        patience = _Patience(writer)
        while keys := self._look(writer, request.limit):
            locked = self._lock_unbroken(writer, request, keys)
            if locked and self._are_next(writer, request, locked):
                return locked
            if not patience.pause():
                raise _timeout(self.mapping)
        return []

    def _are_next(self, writer: Writer, request: Request, locked: Sequence[Any]) -> bool:
        """Look once more, now that the rows are locked: one may have been moved back before."""
        found = self._keys_of(request, locked)
        return self._look(writer, len(found)) == found

    def _keys_of(self, request: Request, locked: Sequence[Any]) -> list[tuple[Any, ...]]:
        jobs = locked if request.rows else [entity for entity, _ in locked]
        return keys_of(self.mapping, jobs, rows=request.rows)

    def _look(self, writer: Writer, limit: int) -> list[tuple[Any, ...]]:
        """Read the keys of the next jobs as they are committed, locked or not.

        Priority by priority that takes several reads, and a sooner job may come
        between two of them: then it takes two equal looks.
        """
        keys = self._look_once(writer, limit)
        while self.spec.steps and keys != (again := self._look_once(writer, limit)):
            keys = again
        return keys

    def _look_once(self, writer: Writer, limit: int) -> list[tuple[Any, ...]]:
        def look(**parameters: Any) -> list[Any]:
            return list(writer.rows(self.draw, parameters).all())

        return [tuple(key) for key in self.in_steps(writer, limit, look)]

    def _lock_unbroken(
        self, writer: Writer, request: Request, keys: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Lock the next jobs, up to one that somebody else has.

        Whoever locks the first has the turn. It is asked for alone, so that
        those who do not get it hold nothing.
        """
        if len(keys) > 1 and not self._lock_first(writer, keys[0]):
            return []
        statement = self.lock_candidate_rows if request.rows else self.lock_candidates
        locked = self.read(writer, request, statement, {"claim_keys": self.lockable(keys)})
        found = self._keys_of(request, locked)
        unbroken = takewhile(lambda pair: pair[0] == pair[1], zip(found, keys, strict=False))
        return list(locked[: len(list(unbroken))])

    def _lock_first(self, writer: Writer, key: tuple[Any, ...]) -> bool:
        found = writer.rows(self.lock_first, {"claim_keys": self.lockable([key])})
        return found.first() is not None

    @cached_property
    def lock_first(self) -> Any:
        """The locking read of one job's key, for claims of several."""
        return self.by_keys(*self.mapping.key_attributes)

    def _lock_waiting(self, writer: Writer, request: Request) -> list[Any]:
        statement = self.wait_for_rows if request.rows else self.wait_for_entities
        return self.in_steps(
            writer,
            request.limit,
            lambda **parameters: self.read(writer, request, statement, parameters),
        )

    @cached_property
    def wait_for_entities(self) -> Any:
        """The locking read that passes over nothing, of entities."""
        return self._lock_ready(rows=False, waiting=True).options(*self.loading)

    @cached_property
    def wait_for_rows(self) -> Any:
        """The locking read that passes over nothing, of plain rows."""
        return self._lock_ready(rows=True, waiting=True)


class _Patience:
    """How long a claim goes on looking: as long as the engine waits for a lock."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._end: float | None = None
        self._longest = SHORTEST_PAUSE

    def pause(self) -> bool:
        """Wait a moment; tell whether there is time for another look."""
        if self._end is None:
            limit = self._writer.database.lock_wait(self._writer.connection)
            self._end = time.monotonic() + limit.total_seconds()
        if time.monotonic() >= self._end:
            return False
        pause = self._longest * random.uniform(0.5, 1.0)
        self._writer.database.pause(self._writer.connection, pause)
        self._longest = min(self._longest * 2, LONGEST_PAUSE)
        return True
