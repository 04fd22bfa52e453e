"""strict_order: no job is claimed while a sooner job can be had; one claimer at a time.

::

    JobQueue(Email, strict_order=True)

The other strategies pass over what somebody else has locked, so a claim that is
rolled back leaves a job behind that later jobs have overtaken. Here the next claimer
waits until the transaction of the claimer before it has ended. It waits for a lock that
ends with that transaction and never sooner: on PostgreSQL an advisory lock of the
transaction, on MySQL and MariaDB the lock of the next row, on SQLite the write lock.
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

from ..dialects import Database, is_lock_timeout
from ..errors import LockTimeout, UnsupportedDatabase
from ..model.keys import keys_of
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer
from .compare_and_set import CompareAndSet
from .reads import CandidateReads, LockingRead, refusal_without_skip_locked
from .spec import ClaimSpec, Request, Taken
from .strategy import Mark, Strategy
from .update_then_select import UpdateThenSelect

#: How long to wait before looking again at a row that somebody has locked.
SHORTEST_PAUSE = timedelta(milliseconds=1)
LONGEST_PAUSE = timedelta(milliseconds=25)


class StrictOrder(Strategy):
    """What holds on every database: a transaction is needed, and waiting has a limit."""

    name = "strict_order"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._in_order = _strategy_in_order(database)(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        # Where no claim is safe, the error of _strategy_in_order() tells more.
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.in_autocommit:
            raise UnsupportedDatabase(
                "strict_order makes other claims wait until the claim's transaction ends, and an "
                "AUTOCOMMIT connection has no transaction: use a session without AUTOCOMMIT"
            )
        with _one_timeout_error(self.mapping):
            return self._in_order.take(writer, request)

    def statements(self) -> list[Executable]:
        return self._in_order.statements()


def _strategy_in_order(database: Database) -> type[Strategy]:
    """Choose the strategy that keeps the order on a database.

    Raises:
        UnsupportedDatabase: no strategy does.
    """
    if database.skip_locked:
        return InOrder
    if database.one_writer and database.update_returning:
        return CompareAndSet  # its first statement takes the write lock
    if database.ordered_update:
        return UpdateThenSelect  # it walks in order, and waits for locked rows
    raise UnsupportedDatabase(
        f"{database} cannot claim safely: it has neither SKIP LOCKED nor "
        "UPDATE .. ORDER BY .. LIMIT, and more than one writer at a time. Use another database"
    )


@contextmanager
def _one_timeout_error(mapping: QueueMapping) -> Iterator[None]:
    """Raise LockTimeout on every database when the wait for a lock was too long."""
    try:
        yield
    except Exception as error:  # a handle_error listener may raise what it likes
        if not is_lock_timeout(error):
            raise
        raise _timeout(mapping) from error


def _timeout(mapping: QueueMapping) -> LockTimeout:
    return LockTimeout(
        f"the turn to claim {mapping} in strict order did not come in time: another transaction "
        "that claimed, or that changed the next job, is still open. Roll back and claim again"
    )


class InOrder(Strategy):
    """Read the next jobs, lock the first of them, and those that follow it unbroken."""

    # Why it is not just the locking read without SKIP LOCKED: a locking read that waited
    # goes on from where it stood. Sooner jobs that were committed meanwhile are behind
    # it, and on PostgreSQL it takes a job even if it was moved back meanwhile. So
    # nothing is taken after a wait without a new look.
    #
    # Why InnoDB does not wait by a locking read of the first row: when a read has waited,
    # its lock stays until the transaction ends, even if the row does not match any more,
    # and under READ COMMITTED too (seen on MySQL 9.7 and MariaDB 10.11). Whoever had
    # waited for a job's claim then stood in the way of its finish. A second look after
    # a millisecond holds no lock, and cannot deadlock.

    name = "strict_order"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        # MySQL was seen to read and sort the whole backlog of a partitioned table.
        columns, by_index = self.mapping.key_attributes, spec.partitioned
        self._reads = CandidateReads(self.ready, *columns, by_index=by_index)
        self._waiting_read = LockingRead(self.ready, self._lock_waiting)
        self._mark = Mark(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        self._await_turn(writer)
        if self._turn is not None or writer.sees_commits:  # _await_turn() has checked that too
            locked = self._lock_next(writer, request)
        else:
            # A plain read would see old or uncommitted rows; only a locking read will do.
            locked = self._wait_and_lock(writer, request)
        return self._mark.write(writer, request, locked)

    def statements(self) -> list[Executable]:
        turn = [] if self._turn is None else [self._turn]
        return [
            *turn,
            *self.ready.levels.statements(),
            self._reads.plain,
            self._lock_first_key,
            self._reads.locking.entities,
            self._mark.by_key,
        ]

    # -- the turn -------------------------------------------------------

    @cached_property
    def _turn(self) -> Executable | None:
        return self.database.claim_lock(self.mapping.table)

    def _await_turn(self, writer: Writer) -> None:
        """Wait for the lock of the claimer, in a statement before the claim's snapshot."""
        if self._turn is None:
            return
        keeps_snapshot = writer.core(self._turn).scalar()
        if keeps_snapshot:
            raise UnsupportedDatabase(
                "strict_order must see what the claim before it has committed, and an isolation "
                "level above READ COMMITTED hides that. Begin the transaction as READ COMMITTED, "
                "as with "
                'create_engine(.., isolation_level="READ COMMITTED")'
            )

    # -- look, lock, look again -----------------------------------------

    def _lock_next(self, writer: Writer, request: Request) -> list[Any]:
        patience = _Patience(writer)
        while keys := self._next_keys(writer, request.limit):
            locked = self._lock_unbroken(writer, request, keys)
            if locked and self._are_next(writer, request, locked):
                return locked
            if not patience.pause():
                raise _timeout(self.mapping)
        return []

    def _are_next(self, writer: Writer, request: Request, locked: Sequence[Any]) -> bool:
        """Look again, now that the rows are locked: a job may have been moved back before."""
        found = self._keys_of(request, locked)
        return self._next_keys(writer, len(found)) == found

    def _keys_of(self, request: Request, locked: Sequence[Any]) -> list[tuple[Any, ...]]:
        jobs = locked if request.rows else [entity for entity, _ in locked]
        return keys_of(self.mapping, jobs, rows=request.rows)

    def _next_keys(self, writer: Writer, limit: int) -> list[tuple[Any, ...]]:
        """Read the keys of the next jobs as they are committed, locked or not.

        With levels that takes several reads, and a sooner job may come between two of
        them: then look until two looks are equal.
        """
        keys = self._look_once(writer, limit)
        while self.spec.levels and keys != (again := self._look_once(writer, limit)):
            keys = again
        return keys

    def _look_once(self, writer: Writer, limit: int) -> list[tuple[Any, ...]]:
        def look(**parameters: Any) -> list[Any]:
            return list(writer.rows(self._reads.plain, parameters).all())

        return [tuple(key) for key in self.ready.levels.collect(writer, limit, look)]

    def _lock_unbroken(
        self, writer: Writer, request: Request, keys: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Lock the next jobs, up to the first job that somebody else has locked.

        Whoever locks the first job has the turn. It is locked by a read of its own, so
        that those who do not get it hold nothing.
        """
        if len(keys) > 1 and not self._lock_first(writer, keys[0]):
            return []
        parameters = {"sa_jobqueue_keys": self._reads.lockable(keys)}
        locked = self._reads.locking.run(writer, request, parameters)
        found = self._keys_of(request, locked)
        unbroken = takewhile(lambda pair: pair[0] == pair[1], zip(found, keys, strict=False))
        return list(locked[: len(list(unbroken))])

    def _lock_first(self, writer: Writer, key: tuple[Any, ...]) -> bool:
        parameters = {"sa_jobqueue_keys": self._reads.lockable([key])}
        return writer.rows(self._lock_first_key, parameters).first() is not None

    @cached_property
    def _lock_first_key(self) -> Any:
        """The locking read of one job's key, for claims of several."""
        return self._reads.lock_by_keys(*self.mapping.key_attributes)

    # -- by waiting -----------------------------------------------------

    def _wait_and_lock(self, writer: Writer, request: Request) -> list[Any]:
        return self.ready.levels.collect(
            writer,
            request.limit,
            lambda **parameters: self._waiting_read.run(writer, request, parameters),
        )

    def _lock_waiting(self, *columns: Any) -> Any:
        """Make the locking read that waits for locked rows instead of passing over them."""
        read = self.ready.locked(self.ready.select(*columns), waiting=True)
        return self.ready.by_claim_index(read)


class _Patience:
    """How long a claim goes on looking: as long as the database waits for a lock."""

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
