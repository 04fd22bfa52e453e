"""Hand-written SQL for SQLite, through the standard library."""

from __future__ import annotations

import sqlite3
from typing import Any, ClassVar

from benchmarks.adapters.adapter import file_of, prepare_sqlite
from benchmarks.adapters.shared_table import InTransactions, TurnTransaction

CLAIM = (
    "UPDATE bench_job SET status = 'claimed', owner = ?, "
    "owner_date = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' "
    "WHERE id IN (SELECT id FROM bench_job WHERE status = 'unclaimed' ORDER BY id LIMIT ?) "
    "RETURNING id, payload"
)
DELETE = "DELETE FROM bench_job WHERE id IN ({marks})"
KEEP = (
    "UPDATE bench_job SET status = 'done', "
    "owner_date = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' WHERE id IN ({marks})"
)


class Delete(InTransactions):
    """The baseline: UPDATE .. RETURNING, COMMIT, DELETE, COMMIT, each under BEGIN IMMEDIATE."""

    finish_sql: ClassVar[str] = DELETE

    def connect(self) -> Any:
        connection = sqlite3.connect(file_of(self.url), timeout=60, isolation_level=None)
        prepare_sqlite(connection)
        return connection

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def claim(self) -> list[int]:
        rows = self.connection.execute(CLAIM, (self.owner, self.batch)).fetchall()
        return sorted(row[0] for row in rows)

    def finish(self, jobs: list[int]) -> None:
        marks = ",".join("?" * len(jobs))
        self.connection.execute(self.finish_sql.format(marks=marks), jobs)


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish_sql = KEEP


class Turn(TurnTransaction, Delete):
    """Finish a batch and claim the next in one transaction."""
