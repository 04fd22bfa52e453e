"""Hand-written SQL through psycopg2."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import psycopg2

from benchmarks.adapters.adapter import connect_arguments
from benchmarks.adapters.shared_table import OnSharedTable

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


class Delete(OnSharedTable):
    """The baseline: UPDATE .. RETURNING of the picked rows, COMMIT, DELETE, COMMIT."""

    claim: ClassVar[str] = CLAIM
    finish: ClassVar[str] = DELETE

    def open(self) -> None:
        self.connection = psycopg2.connect(**_arguments(self.url))
        self.cursor = self.connection.cursor()
        self.owner = f"worker-{os.getpid()}"
        assert not self.claimed()
        self.connection.commit()

    def claimed(self) -> list[int]:
        """Claim the next batch, in whatever transaction is open."""
        self.cursor.execute(self.claim, {"owner": self.owner, "limit": self.batch})
        return [row[0] for row in self.cursor.fetchall()]

    def finished(self, ids: list[int]) -> None:
        """Finish a batch, in whatever transaction is open."""
        self.cursor.execute(self.finish, {"ids": ids})

    def drain(self) -> list[int]:
        run: list[int] = []
        while True:
            ids = self.claimed()
            self.connection.commit()
            if not ids:
                return run
            run += ids
            self.finished(ids)
            self.connection.commit()


class ByArray(Delete):
    """The same with the picked keys in an ARRAY."""

    claim = CLAIM_BY_ARRAY


class Keep(Delete):
    """The same, with the rows kept as done."""

    finish = KEEP


class Held(Delete):
    """One transaction held while working: the rows locked, then deleted."""

    claim = LOCK

    def drain(self) -> list[int]:
        run: list[int] = []
        while ids := self.claimed():
            run += ids
            self.finished(ids)
            self.connection.commit()
        self.connection.commit()
        return run


class Turn(Delete):
    """Finish one batch and claim the next in one transaction."""

    claim = CLAIM_BY_ARRAY

    def drain(self) -> list[int]:
        run: list[int] = []
        ids: list[int] = []
        while True:
            following = self._turned(ids)
            run += ids
            ids = following
            if not ids:
                return run

    def _turned(self, ids: list[int]) -> list[int]:
        while True:
            try:
                if ids:
                    self.finished(ids)
                following = self.claimed()
                self.connection.commit()
            except psycopg2.errors.DeadlockDetected:
                self.connection.rollback()
                self.retries += 1
            else:
                return following


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
        while locked := self._ids(self.lock, {"limit": self.batch}):
            mine = self._ids(self.check, {"ids": locked})
            run += mine
            if mine:
                self.finished(mine)
            self.cursor.execute(self.unlock, {"ids": locked})
        return run

    def _ids(self, statement: str, parameters: dict[str, Any]) -> list[int]:
        self.cursor.execute(statement, parameters)
        return [row[0] for row in self.cursor.fetchall()]


def _arguments(url: str) -> dict[str, Any]:
    return {
        "dbname" if key == "database" else key: value
        for key, value in connect_arguments(url).items()
    }
