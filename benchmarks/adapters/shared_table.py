"""Adapters on the shared table: how it is filled and counted, and how a worker drains it.

Hand-written SQL and sa_jobqueue claim and finish in the same loops, so that they differ in
nothing but the statements.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, func, insert, select
from sqlalchemy.orm import Session

from benchmarks.adapters.adapter import Adapter
from benchmarks.adapters.model import Base, Job, connected, make_engine, payloads
from sa_jobqueue import is_transient

R = TypeVar("R")


def unfinished(connection: Connection, *criteria: ColumnElement[bool]) -> int:
    """Count the jobs that are not finished."""
    counted = select(func.count()).where(Job.status.in_(("unclaimed", "claimed")), *criteria)
    return connection.execute(counted).scalar_one()


class OnSharedTable(Adapter):
    """An adapter on ``bench_job``."""

    def create(self) -> None:
        with connected(self.url) as connection:
            Base.metadata.drop_all(connection)
            Base.metadata.create_all(connection)

    def fill(self, jobs: int) -> None:
        with connected(self.url) as connection:
            connection.execute(insert(Job), payloads(jobs))

    def left(self) -> int:
        with connected(self.url) as connection:
            return unfinished(connection)


class InTransactions(OnSharedTable):
    """Claims, COMMIT, finishes, COMMIT.

    Attributes:
        connection: whatever has commit() and rollback().
    """

    connection: Any

    def open(self) -> None:
        self.owner = f"worker-{os.getpid()}"
        self.connection = self.connect()
        assert not self.in_transaction(self.claim)

    @abstractmethod
    def connect(self) -> Any:
        """Connect, and return the connection."""

    @abstractmethod
    def claim(self) -> Any:
        """Claim the next batch, in whatever transaction is open."""

    @abstractmethod
    def finish(self, jobs: Any) -> None:
        """Finish a batch, in whatever transaction is open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def numbers(self, jobs: Any) -> list[int]:
        """Return the numbers of claimed jobs."""
        return list(jobs)

    def is_deadlock(self, error: Exception) -> bool:
        """Tell whether a transaction is worth running again."""
        return False

    def count_retry(self, error: Exception) -> None:
        """Count a transaction that is run again."""
        self.retries += 1

    def in_transaction(self, work: Callable[..., R], *given: Any) -> R:
        """Run work and commit, again after a deadlock: so must whoever writes this by hand."""
        while True:
            try:
                self.begin()
                result = work(*given)
                self.connection.commit()
            except Exception as error:
                if not self.is_deadlock(error):
                    raise
                self.connection.rollback()
                self.count_retry(error)
            else:
                return result

    def drain(self) -> list[int]:
        run: list[int] = []
        while jobs := self.in_transaction(self.claim):
            run += self.numbers(jobs)
            self.in_transaction(self.finish, jobs)
        return run

    def close(self) -> None:
        self.connection.close()


class HeldTransaction(InTransactions):
    """Claims, works and finishes in one transaction, which keeps the rows locked."""

    def drain(self) -> list[int]:
        run: list[int] = []
        while jobs := self.in_transaction(self.work):
            run += self.numbers(jobs)
        return run

    def work(self) -> Any:
        """Claim a batch and finish it."""
        if jobs := self.claim():
            self.finish(jobs)
        return jobs


class TurnTransaction(InTransactions):
    """Finishes a batch and claims the next in one transaction."""

    def drain(self) -> list[int]:
        run: list[int] = []
        jobs = self.in_transaction(self.claim)
        while jobs:
            run += self.numbers(jobs)
            jobs = self.in_transaction(self.turn, jobs)
        return run

    def turn(self, jobs: Any) -> Any:
        """Finish a batch and claim the next."""
        self.finish(jobs)
        return self.claim()


class ThroughSQLAlchemy(InTransactions):
    """Works on a Connection that it keeps, as does whoever writes the SQL by hand.

    Attributes:
        session: works in a Session, on that connection.
        pooled: a Session takes a connection out of the pool for each transaction. The pool runs
            ROLLBACK whenever it gets a connection back.
    """

    session: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    def connect(self) -> Any:
        self.opened = ExitStack()
        self.engine = make_engine(self.url)
        self.opened.callback(self.engine.dispose)
        bind = self.engine if self.pooled else self.opened.enter_context(self.engine.connect())
        if not self.session:
            return bind
        return self.opened.enter_context(Session(bind, expire_on_commit=False))

    def is_deadlock(self, error: Exception) -> bool:
        return is_transient(error)

    def close(self) -> None:
        self.opened.close()
