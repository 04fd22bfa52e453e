"""Hand-written SQL for MySQL and MariaDB, through PyMySQL."""

from __future__ import annotations

from typing import Any, ClassVar

import pymysql

from benchmarks.adapters.adapter import connect_arguments
from benchmarks.adapters.shared_table import HeldTransaction, InTransactions, TurnTransaction

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


class Delete(InTransactions):
    """The baseline: a locking SELECT, UPDATE, COMMIT, then DELETE, COMMIT."""

    finish_sql: ClassVar[str] = DELETE

    def connect(self) -> Any:
        connection: Any = pymysql.connect(**connect_arguments(self.url))
        self.cursor = connection.cursor()
        # Under the default, REPEATABLE READ, consumers that claim and finish deadlock.
        self.cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def lock(self) -> list[int]:
        """Lock the next batch."""
        self.cursor.execute(LOCK, (self.batch,))
        return [row[0] for row in self.cursor.fetchall()]

    def claim(self) -> list[int]:
        if ids := self.lock():
            self.cursor.execute(MARK, (self.owner, ids))
        return ids

    def finish(self, jobs: list[int]) -> None:
        self.cursor.execute(self.finish_sql, (jobs,))

    def is_deadlock(self, error: Exception) -> bool:
        return isinstance(error, pymysql.OperationalError) and error.args[0] == DEADLOCK


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish_sql = KEEP


class Held(HeldTransaction, Delete):
    """One transaction held while working: the rows locked, then deleted."""

    def claim(self) -> list[int]:
        return self.lock()


class Turn(TurnTransaction, Delete):
    """Finish a batch and claim the next in one transaction."""
