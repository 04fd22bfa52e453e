"""sa_jobqueue itself, each way of using it."""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.adapters.adapter import prepare_sqlite
from benchmarks.adapters.model import Job, make_engine
from benchmarks.adapters.naps import Naps
from benchmarks.adapters.shared_table import (
    HeldTransaction,
    OnSharedTable,
    ThroughSQLAlchemy,
    TurnTransaction,
)
from sa_jobqueue import JobQueue, Owner
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.worker import Worker

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
    entity: type[Any] = Job

    def open(self) -> None:
        self.queue = JobQueue(self.entity, strategy=self.strategy)
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


class TurnInAutocommit(Turn):
    """The same on an AUTOCOMMIT connection: each turn is one statement, and no transaction."""

    def connect(self) -> Any:
        connection: Connection = super().connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT")


class TurnOfEntities(Turn):
    """The loop that a Worker does: turn() with entities, in a Session of its own each time.

    It calls a function for each job, as whoever writes such a loop does.
    """

    session = pooled = True

    def turn(self, jobs: Any) -> Any:
        return self.queue.turn(
            self.connection, jobs, owner=self.owner, limit=self.batch, delete=True
        )

    def claim(self) -> Any:
        return self.queue.claim(self.connection, owner=self.owner, limit=self.batch)

    def numbers(self, jobs: Any) -> list[int]:
        run: list[int] = []

        def handle(job: Job) -> None:
            run.append(job.id)

        for job in jobs:
            handle(job)
        return run


class EndOfWork:
    """Notes in `ended_at` of an adapter when the last job was committed as finished.

    Afterwards a worker looks for further jobs, joins its threads, and closes its connections. We
    learn of a COMMIT from the dialect, since an event of the engine would slow each statement down.
    """

    def __init__(self, adapter: OnSharedTable, engine: Engine) -> None:
        self._adapter = adapter
        self._handled: list[int] = []
        self._committed = 0
        commit = engine.dialect.do_commit

        def commit_and_note(dbapi_connection: Any) -> None:
            commit(dbapi_connection)
            if len(self._handled) > self._committed:
                self._committed = len(self._handled)
                self._adapter.ended_at = time.monotonic()

        engine.dialect.do_commit = commit_and_note  # type: ignore[method-assign]

    def watch(self, handled: list[int]) -> None:
        """Watch a drain, whose handler appends to this list."""
        self._handled, self._committed = handled, 0


class TheWorker(OnSharedTable):
    """A Worker as an application runs it: an Owner, a heartbeat, reaps, a handler for each job.

    Its Owner is open before a drain begins, as the connections of other adapters are.
    """

    def open(self) -> None:
        self.engine = make_engine(self.url)
        self.end = EndOfWork(self, self.engine)
        self.owner = Owner(self.engine)
        self.owner.open()
        assert not self.drain()

    def drain(self) -> list[int]:
        run: list[int] = []
        self.end.watch(run)
        naps = Naps()

        def handle(job: Job) -> None:
            run.append(job.id)

        def handle_slowly(job: Job) -> None:
            naps.take(job.id)
            run.append(job.id)

        slots = self.batch if naps.kind else 1
        worker = Worker(
            self.engine,
            JobQueue(Job),
            handle_slowly if naps.kind else handle,
            owner=self.owner,
            concurrency=slots,
            limit=None if naps.kind else self.batch,
            delete=True,
            drain=True,
        )
        worker.run()
        naps.write()
        return run

    def close(self) -> None:
        self.owner.close()
        self.engine.dispose()


def async_url(url: str) -> URL:
    """Return the URL of the same database by an async driver."""
    parts = make_url(url)
    backend = parts.get_backend_name()
    return parts.set(drivername=f"{backend}+{ASYNC_DRIVERS[backend]}")


class InLoop(OnSharedTable):
    """An adapter in an event loop, with an engine of an async driver."""

    def open(self) -> None:
        url = async_url(self.url)
        self.loop = asyncio.Runner()
        self.owner = f"worker-{os.getpid()}"
        options = {"connect_args": {"timeout": 60}} if url.drivername.startswith("sqlite") else {}
        self.engine = create_async_engine(url, **options)
        if options:
            event.listen(
                self.engine.sync_engine, "connect", lambda driver, _: prepare_sqlite(driver)
            )
        assert not self.drain()

    def drain(self) -> list[int]:
        return self.loop.run(self._drain())

    @abstractmethod
    async def _drain(self) -> list[int]: ...

    def close(self) -> None:
        self.loop.run(self.engine.dispose())
        self.loop.close()


class TheAsyncWorker(InLoop):
    """An AsyncWorker as an application runs it; its Owner is open before a drain begins, too."""

    def open(self) -> None:
        self.job_owner: Owner | None = None
        self.end: EndOfWork | None = None
        super().open()

    def close(self) -> None:
        assert self.job_owner is not None
        self.job_owner.close()
        super().close()

    async def _drain(self) -> list[int]:
        run: list[int] = []
        if self.end is None:
            self.end = EndOfWork(self, self.engine.sync_engine)
        self.end.watch(run)
        naps = Naps()

        async def handle(job: Job) -> None:
            run.append(job.id)

        async def handle_slowly(job: Job) -> None:
            await naps.take_awaited(job.id)
            run.append(job.id)

        slots = self.batch if naps.kind else 1
        if self.job_owner is None:
            self.job_owner = Owner(self.engine)
            self.job_owner.open()
        worker = AsyncWorker(
            self.engine,
            JobQueue(Job),
            handle_slowly if naps.kind else handle,
            owner=self.job_owner,
            concurrency=slots,
            limit=None if naps.kind else self.batch,
            delete=True,
            drain=True,
        )
        await worker.run()
        naps.write()
        return run


class TurnsInLoop(InLoop):
    """The loop that an AsyncWorker does: turn() with entities, and a call for each job."""

    async def _drain(self) -> list[int]:
        run: list[int] = []

        async def handle(job: Job) -> None:
            run.append(job.id)

        queue = AsyncJobQueue(JobQueue(Job))
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            jobs = await queue.claim(session, owner=self.owner, limit=self.batch)
            await session.commit()
            while jobs:
                for job in jobs:
                    await handle(job)
                jobs = await queue.turn(
                    session, jobs, owner=self.owner, limit=self.batch, delete=True
                )
                await session.commit()
        return run


class Asyncio(InLoop):
    """The verbs of sa_jobqueue.asyncio, on rows."""

    def open(self) -> None:
        self.queue = AsyncJobQueue(JobQueue(Job))
        super().open()

    async def _drain(self) -> list[int]:
        run: list[int] = []
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            while jobs := await self._claim(session):
                run += [job[0] for job in jobs]
                await self.queue.complete(session, jobs, delete=True)
                await session.commit()
        return run

    async def _claim(self, session: AsyncSession) -> Any:
        jobs = await self.queue.claim_rows(session, owner=self.owner, limit=self.batch)
        await session.commit()
        return jobs
