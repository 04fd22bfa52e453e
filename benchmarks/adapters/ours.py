"""sa_jobqueue itself, each way of using it."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.adapters.model import Job
from benchmarks.adapters.shared_table import (
    HeldTransaction,
    OnSharedTable,
    ThroughSQLAlchemy,
    TurnTransaction,
)
from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue

ASYNC_DRIVERS = {
    "postgresql": "asyncpg",
    "mysql": "asyncmy",
    "mariadb": "asyncmy",
    "sqlite": "aiosqlite",
}


class Rows(ThroughSQLAlchemy):
    """claim_rows() on a Connection, COMMIT, complete(delete=True), COMMIT."""

    strategy: ClassVar[str] = "auto"
    delete: ClassVar[bool] = True

    def open(self) -> None:
        self.queue = JobQueue(Job, strategy=self.strategy)
        super().open()

    def claim(self) -> Any:
        return self.queue.claim_rows(self.connection, owner=self.owner, limit=self.batch)

    def finish(self, jobs: Any) -> None:
        self.queue.complete(self.connection, jobs, delete=self.delete)

    def numbers(self, jobs: Any) -> list[int]:
        return [job[0] for job in jobs]


class Entities(Rows):
    """The same with claim(), in a Session on a connection that is kept."""

    session = True

    def claim(self) -> Any:
        return self.queue.claim(self.connection, owner=self.owner, limit=self.batch)

    def numbers(self, jobs: Any) -> list[int]:
        return [job.id for job in jobs]


class InSession(Rows):
    """Rows in a Session, with a connection from the pool for each transaction."""

    session = pooled = True


class Keep(Rows):
    """The rows are kept as done."""

    delete = False


class Held(HeldTransaction, Rows):
    """strategy="held": claim, work and finish in one transaction."""

    strategy = "held"


class Advisory(HeldTransaction, Rows):
    """strategy="advisory": nothing is written until the finish."""

    strategy = "advisory"


class Turn(TurnTransaction, Rows):
    """turn(): finish a batch and claim the next in one transaction."""

    def turn(self, jobs: Any) -> Any:
        return self.queue.turn(
            self.connection, jobs, owner=self.owner, limit=self.batch, delete=True, rows=True
        )


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
        assert not self.drain()

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
