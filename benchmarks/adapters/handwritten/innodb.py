"""Hand-written SQL for MySQL and MariaDB, through PyMySQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pymysql

from benchmarks.adapters.adapter import connect_arguments
from benchmarks.adapters.shared_table import OnSharedTable

R = TypeVar("R")

DEADLOCK = 1213

LOCK = (
    "SELECT id, payload FROM bench_job WHERE status = 'unclaimed' ORDER BY id LIMIT %s "
    "FOR UPDATE SKIP LOCKED"
)
MARK = (
    "UPDATE bench_job SET status = 'claimed', owner = %s, owner_date = UTC_TIMESTAMP(6) "
    "WHERE id IN %s"
)
DELETE = "DELETE FROM bench_job WHERE id IN %s"
KEEP = "UPDATE bench_job SET status = 'done', owner_date = UTC_TIMESTAMP(6) WHERE id IN %s"


class Delete(OnSharedTable):
    """The baseline: a locking SELECT, UPDATE, COMMIT, then DELETE, COMMIT."""

    finish: ClassVar[str] = DELETE

    def open(self) -> None:
        self.connection: Any = pymysql.connect(**connect_arguments(self.url))
        self.cursor = self.connection.cursor()
        # The default, REPEATABLE READ, deadlocks consumers that claim and finish.
        self.cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.owner = f"worker-{os.getpid()}"
        assert not self.claimed()
        self.connection.commit()

    def locked(self) -> list[int]:
        """Lock the next batch."""
        self.cursor.execute(LOCK, (self.batch,))
        return [row[0] for row in self.cursor.fetchall()]

    def claimed(self) -> list[int]:
        """Lock the next batch and mark it."""
        ids = self.locked()
        if ids:
            self.cursor.execute(MARK, (self.owner, ids))
        return ids

    def finished(self, ids: list[int]) -> None:
        """Finish a batch, in whatever transaction is open."""
        self.cursor.execute(self.finish, (ids,))

    def in_transaction(self, work: Callable[..., R], *given: Any) -> R:
        """Run work and commit, again after a deadlock: so must whoever writes this by hand."""
        while True:
            try:
                result = work(*given)
                self.connection.commit()
            except pymysql.OperationalError as error:
                if error.args[0] != DEADLOCK:
                    raise
                self.connection.rollback()
                self.retries += 1
            else:
                return result

    def drain(self) -> list[int]:
        run: list[int] = []
        while ids := self.in_transaction(self.claimed):
            run += ids
            self.in_transaction(self.finished, ids)
        return run


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish = KEEP


class Held(Delete):
    """One transaction held while working: the rows locked, then deleted."""

    def drain(self) -> list[int]:
        run: list[int] = []
        while ids := self.in_transaction(self._worked):
            run += ids
        return run

    def _worked(self) -> list[int]:
        ids = self.locked()
        if ids:
            self.finished(ids)
        return ids


class Turn(Delete):
    """Finish one batch and claim the next in one transaction."""

    def drain(self) -> list[int]:
        run: list[int] = []
        ids = self.in_transaction(self.claimed)
        while ids:
            run += ids
            ids = self.in_transaction(self._turned, ids)
        return run

    def _turned(self, ids: list[int]) -> list[int]:
        self.finished(ids)
        return self.claimed()
