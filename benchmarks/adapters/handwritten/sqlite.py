"""Hand-written SQL for SQLite, through the standard library."""

from __future__ import annotations

import os
import sqlite3
from typing import ClassVar

from benchmarks.adapters.adapter import file_of
from benchmarks.adapters.shared_table import OnSharedTable

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


class Delete(OnSharedTable):
    """The baseline: UPDATE .. RETURNING, COMMIT, DELETE, COMMIT, each under BEGIN IMMEDIATE."""

    finish: ClassVar[str] = DELETE

    def open(self) -> None:
        self.connection = sqlite3.connect(file_of(self.url), timeout=60, isolation_level=None)
        self.owner = f"worker-{os.getpid()}"
        self.begin()
        assert not self.claimed()
        self.commit()

    def begin(self) -> None:
        """Begin a transaction that writes."""
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit it."""
        self.connection.execute("COMMIT")

    def claimed(self) -> list[int]:
        """Claim the next batch, in whatever transaction is open."""
        rows = self.connection.execute(CLAIM, (self.owner, self.batch)).fetchall()
        return sorted(row[0] for row in rows)

    def finished(self, ids: list[int]) -> None:
        """Finish a batch, in whatever transaction is open."""
        marks = ",".join("?" * len(ids))
        self.connection.execute(self.finish.format(marks=marks), ids)

    def drain(self) -> list[int]:
        run: list[int] = []
        while True:
            self.begin()
            ids = self.claimed()
            self.commit()
            if not ids:
                return run
            run += ids
            self.begin()
            self.finished(ids)
            self.commit()


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish = KEEP


class Turn(Delete):
    """Finish one batch and claim the next in one transaction."""

    def drain(self) -> list[int]:
        run: list[int] = []
        ids: list[int] = []
        while True:
            self.begin()
            if ids:
                self.finished(ids)
            following = self.claimed()
            self.commit()
            run += ids
            ids = following
            if not ids:
                return run
