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
from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import Executable

from ..databases import Database, is_lock_timeout
from ..errors import LockTimeout
from ..fence.token import Identity
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer
from .candidates import ByCandidates
from .spec import Request, Taken
from .strategy import Locked, Strategy, check_sees_commits, check_transaction, kept

#: How long to wait before looking again at a row that somebody has locked.
SHORTEST_PAUSE = timedelta(milliseconds=1)
LONGEST_PAUSE = timedelta(milliseconds=25)


class StrictOrder(Strategy):
    """What holds on every database: a transaction is needed, and waiting has a limit.

    Args:
        in_order: claims in exact order: :class:`InOrder`; compare_and_set, whose first statement
            takes the write lock; or update_then_select, which waits for locked rows.
    """

    name = "strict_order"

    def __init__(self, in_order: Strategy) -> None:
        super().__init__(in_order.spec, in_order.database, indexed=in_order.indexed)
        self._in_order = in_order

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        check_transaction(
            writer, "strict_order makes other claims wait until the claim's transaction ends"
        )
        try:
            return self._in_order.take(writer, request)
        except Exception as error:  # a handle_error listener may raise what it likes
            if not is_lock_timeout(error):
                raise
            raise _timeout(self.mapping) from error

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        return self._in_order.statements(from_head=from_head)


def _timeout(mapping: QueueMapping) -> LockTimeout:
    return LockTimeout(
        f"the turn to claim {mapping} in strict order did not come in time: another transaction "
        "that claimed, or that changed the next job, is still open. Roll back and claim again"
    )


class InOrder(ByCandidates):
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

    def take(self, writer: Writer, request: Request) -> Taken:
        turn = self.turn()
        # The lock of the claimer comes in a statement before the claim's snapshot.
        sees_commits = writer.sees_commits if turn is None else not writer.core(turn).scalar()
        check_sees_commits(
            sees_commits, "strict_order must see what the claim before it has committed"
        )
        pause, until = SHORTEST_PAUSE, None
        while keys := self._next_keys(writer, request.limit):
            locked = self._lock_unbroken(writer, request, keys)
            if locked and self._are_next(writer, request, locked):
                return self.mark(writer, request, locked)
            if until is None:  # it goes on looking as long as the database waits for a lock
                patience = self.database.lock_wait(writer.connection)
                until = time.monotonic() + patience.total_seconds()
            if time.monotonic() >= until:
                raise _timeout(self.mapping)
            self.database.pause(writer.connection, pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)
        return Taken([])

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        turn = self.turn()
        locks = [self.lock_first_key(), self.lock_by_keys(), self.mark_by_keys()]
        levels = self.ready.level_statements
        return [*([] if turn is None else [turn]), *levels, self.look(), *locks]

    @kept
    def turn(self) -> Executable | None:
        """Wait for the lock of the claimer; None where the lock of the next row is the turn."""
        return self.database.claim_lock(self.mapping.table)

    # -- look, lock, look again -----------------------------------------

    def _are_next(self, writer: Writer, request: Request, locked: Sequence[Locked]) -> bool:
        """Look again, now that the rows are locked: a job may have been moved back before."""
        found = self.keys_locked(request, locked)
        return self._next_keys(writer, len(found)) == found

    def _next_keys(self, writer: Writer, limit: int) -> list[Identity]:
        """Read the keys of the next jobs as they are committed, locked or not.

        With levels that takes several reads, and a sooner job may come between two of
        them: then look until two looks are equal.
        """
        keys = self.draw(writer, limit, self.look())
        while self.spec.levels and keys != (again := self.draw(writer, limit, self.look())):
            keys = again
        return [tuple(key) for key in keys]

    def _lock_unbroken(
        self, writer: Writer, request: Request, keys: Sequence[Identity]
    ) -> list[Locked]:
        """Lock the next jobs, up to the first job that somebody else has locked.

        Whoever locks the first job has the turn. It is locked by a read of its own, so
        that those who do not get it hold nothing.
        """
        if len(keys) > 1:
            first = {"sa_jobqueue_keys": self.lockable(keys[:1])}
            if writer.rows(self.lock_first_key(), first).first() is None:
                return []
        locked = self.lock_keys(writer, request, keys)
        pairs = zip(self.keys_locked(request, locked), keys, strict=False)
        return locked[: len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))]

    @kept
    def lock_first_key(self) -> Any:
        """The locking read of one job's key, for claims of several."""
        return self.select_by_keys(*self.mapping.key_attributes)
