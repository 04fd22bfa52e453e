"""Hand-written SQL through psycopg2."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg2

from benchmarks.adapters.adapter import connect_arguments
from benchmarks.adapters.shared_table import HeldTransaction, InTransactions, TurnTransaction

PICK = (
    "SELECT id FROM bench_job WHERE status = 'unclaimed' ORDER BY id LIMIT %(limit)s "
    "FOR NO KEY UPDATE SKIP LOCKED"
)
MARK = "SET status = 'claimed', owner = %(owner)s, owner_date = statement_timestamp()"
CLAIM = (
    f"WITH picked AS MATERIALIZED ({PICK}) UPDATE bench_job AS job {MARK} FROM picked "
    "WHERE job.id = picked.id RETURNING job.id, job.payload"
)
CLAIM_BY_ARRAY = f"UPDATE bench_job {MARK} WHERE id = ANY(ARRAY({PICK})) RETURNING id, payload"
LOCK = PICK.replace("SELECT id", "SELECT id, payload")
DELETE = "DELETE FROM bench_job WHERE id = ANY(%(ids)s)"
KEEP = (
    "UPDATE bench_job SET status = 'done', owner_date = statement_timestamp() "
    "WHERE id = ANY(%(ids)s)"
)


class Delete(InTransactions):
    """The baseline: UPDATE .. RETURNING of the picked rows, COMMIT, DELETE, COMMIT."""

    claim_sql: ClassVar[str] = CLAIM
    finish_sql: ClassVar[str] = DELETE

    def connect(self) -> Any:
        arguments: dict[str, Any] = connect_arguments(self.url)
        connection = psycopg2.connect(dbname=arguments.pop("database"), **arguments)
        self.cursor = connection.cursor()
        return connection

    def claim(self) -> list[int]:
        return self.ids(self.claim_sql, {"owner": self.owner, "limit": self.batch})

    def finish(self, jobs: list[int]) -> None:
        self.cursor.execute(self.finish_sql, {"ids": jobs})

    def ids(self, statement: str, parameters: dict[str, Any]) -> list[int]:
        """Run a statement that returns rows; return the keys in its first column."""
        self.cursor.execute(statement, parameters)
        return [row[0] for row in self.cursor.fetchall()]

    def is_deadlock(self, error: Exception) -> bool:
        return isinstance(error, psycopg2.errors.DeadlockDetected)


class ByArray(Delete):
    """The same with the picked keys in an ARRAY."""

    claim_sql = CLAIM_BY_ARRAY


class Autocommit(ByArray):
    """Each statement commits itself: one for the claim, one for the finish."""

    def connect(self) -> Any:
        connection = super().connect()
        connection.autocommit = True
        return connection


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish_sql = KEEP


class Held(HeldTransaction, Delete):
    """One transaction held while working: the rows locked, then deleted."""

    claim_sql = LOCK


class Turn(TurnTransaction, Delete):
    """Finish a batch and claim the next in one transaction."""

    claim_sql = CLAIM_BY_ARRAY


class Advisory(Delete):
    """An advisory lock for each row, a second look, DELETE, unlock."""

    lock: ClassVar[str] = (
        "SELECT id FROM (SELECT id FROM bench_job WHERE status = 'unclaimed' ORDER BY id OFFSET 0) "
        "AS candidates WHERE pg_try_advisory_lock(1, id) LIMIT %(limit)s"
    )
    check: ClassVar[str] = (
        "SELECT id, payload FROM bench_job WHERE id = ANY(%(ids)s) AND status = 'unclaimed'"
    )
    unlock: ClassVar[str] = "SELECT pg_advisory_unlock(1, id) FROM unnest(%(ids)s) AS id"

    def open(self) -> None:
        super().open()
        self.connection.autocommit = True

    def drain(self) -> list[int]:
        run: list[int] = []
        while locked := self.ids(self.lock, {"limit": self.batch}):
            mine = self.ids(self.check, {"ids": locked})
            run += mine
            if mine:
                self.finish(mine)
            self.cursor.execute(self.unlock, {"ids": locked})
        return run
