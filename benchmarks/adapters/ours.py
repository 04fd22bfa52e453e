"""sa_jobqueue itself, each way of using it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from benchmarks.adapters.model import Job, make_engine
from benchmarks.adapters.shared_table import OnSharedTable
from sa_jobqueue import JobQueue, is_transient
from sa_jobqueue.asyncio import AsyncJobQueue

R = TypeVar("R")

ASYNC_DRIVERS = {
    "postgresql": "asyncpg",
    "mysql": "asyncmy",
    "mariadb": "asyncmy",
    "sqlite": "aiosqlite",
}


class Entities(OnSharedTable):
    """claim() of entities, COMMIT, complete(delete=True), COMMIT."""

    strategy: ClassVar[str] = "auto"
    rows: ClassVar[bool] = False
    delete: ClassVar[bool] = True

    def open(self) -> None:
        self.queue = JobQueue(Job, strategy=self.strategy)
        self.owner = f"worker-{os.getpid()}"
        self.session: Any = self.connect()
        assert not self.claimed()
        self.session.commit()

    def connect(self) -> Session | Connection:
        """Open what the worker keeps: a session, on a connection that it keeps too.

        So does whoever writes the SQL by hand. A pool says ROLLBACK whenever it gets a
        connection back.
        """
        return Session(make_engine(self.url).connect(), expire_on_commit=False)

    def claimed(self) -> Any:
        """Claim the next batch, in whatever transaction is open."""
        if self.rows:
            return self.queue.claim_rows(self.session, owner=self.owner, limit=self.batch)
        return self.queue.claim(self.session, owner=self.owner, limit=self.batch)

    def numbers(self, jobs: Any) -> list[int]:
        """Return the numbers of claimed jobs."""
        return [job[0] for job in jobs] if self.rows else [job.id for job in jobs]

    def completed(self, jobs: Any) -> None:
        """Finish a batch, in whatever transaction is open."""
        self.queue.complete(self.session, jobs, delete=self.delete)

    def in_transaction(self, work: Callable[..., R], *given: Any) -> R:
        """Run work and commit, again after a deadlock."""
        while True:
            try:
                result = work(*given)
                self.session.commit()
            except DBAPIError as error:
                if not is_transient(error):
                    raise
                self.session.rollback()
                self.retries += 1
            else:
                return result

    def drain(self) -> list[int]:
        run: list[int] = []
        while jobs := self.in_transaction(self.claimed):
            run += self.numbers(jobs)
            self.in_transaction(self.completed, jobs)
        return run


class Rows(Entities):
    """The same with claim_rows(), on a Connection."""

    rows = True

    def connect(self) -> Session | Connection:
        return make_engine(self.url).connect()


class InSession(Rows):
    """The same in a Session, with a connection of the pool's for each transaction."""

    def connect(self) -> Session | Connection:
        return Session(make_engine(self.url), expire_on_commit=False)


class Keep(Rows):
    """The same, with the rows kept as done."""

    delete = False


class Candidates(Rows):
    """The same with strategy="candidates"."""

    strategy = "candidates"


class UpdateThenSelect(Rows):
    """The same with strategy="update_then_select"."""

    strategy = "update_then_select"


class Held(Rows):
    """strategy="held": claim, work and finish in one transaction."""

    strategy = "held"

    def drain(self) -> list[int]:
        run: list[int] = []
        while ids := self.in_transaction(self._worked):
            run += ids
        return run

    def _worked(self) -> list[int]:
        jobs = self.claimed()
        if jobs:
            self.completed(jobs)
        return self.numbers(jobs)


class Turn(Rows):
    """turn(): finish one batch and claim the next in one transaction."""

    def drain(self) -> list[int]:
        run: list[int] = []
        jobs = self.in_transaction(self.claimed)
        while jobs:
            run += self.numbers(jobs)
            jobs = self.in_transaction(self._turned, jobs)
        return run

    def _turned(self, jobs: Any) -> Any:
        return self.queue.turn(
            self.session, jobs, owner=self.owner, limit=self.batch, delete=True, rows=True
        )


class Advisory(Held):
    """strategy="advisory": nothing is written until the finish."""

    strategy = "advisory"


class Asyncio(OnSharedTable):
    """The verbs of sa_jobqueue.asyncio, on rows."""

    def open(self) -> None:
        url = make_url(self.url)
        driver = f"{url.get_backend_name()}+{ASYNC_DRIVERS[url.get_backend_name()]}"
        self.loop = asyncio.Runner()
        self.queue = AsyncJobQueue(JobQueue(Job))
        self.owner = f"worker-{os.getpid()}"
        options = {"connect_args": {"timeout": 60}} if driver.startswith("sqlite") else {}
        engine = create_async_engine(url.set(drivername=driver), **options)
        self.session = AsyncSession(engine, expire_on_commit=False)
        assert not self.loop.run(self._drain())

    def drain(self) -> list[int]:
        return self.loop.run(self._drain())

    async def _drain(self) -> list[int]:
        run: list[int] = []
        while True:
            jobs = await self.queue.claim_rows(self.session, owner=self.owner, limit=self.batch)
            await self.session.commit()
            if not jobs:
                return run
            run += [job[0] for job in jobs]
            await self.queue.complete(self.session, jobs, delete=True)
            await self.session.commit()
