"""Workers that go on: they tell when each handler began; ``python -m benchmarks latency``."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import abstractmethod
from contextlib import ExitStack
from typing import Any, ClassVar

from sqlalchemy import Engine, NullPool, event, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.adapters.adapter import Adapter
from benchmarks.adapters.model import make_engine
from benchmarks.adapters.ours import async_url
from sa_jobqueue import JobMixin, JobQueue, enqueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.events.notes import channel_of
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    pass


class Notifying(JobMixin, Base):
    """On PostgreSQL its jobs are notified of."""

    __tablename__ = "bench_notifying"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


class Looking(JobMixin, Base):
    """On no server its jobs are notified of."""

    __tablename__ = "bench_looking"
    id: Mapped[int] = mapped_column(primary_key=True)


class Serving(Adapter):
    """A worker that is idle between the jobs; jobs are inserted one by one, each with a COMMIT."""

    entity: ClassVar[type[Any]] = Looking

    def __init__(self, url: str, batch: int) -> None:
        super().__init__(url, batch)
        self.engine = make_engine(url)
        self.began: list[float] = []

    def create(self) -> None:
        Base.metadata.drop_all(self.engine)
        Base.metadata.create_all(self.engine)
        self.open()

    def open(self) -> None:
        self.session = Session(self.engine)
        self.statements = 0
        event.listen(Engine, "before_cursor_execute", self._count)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            enqueue(self.session, self.entity, [{}])
            self.session.commit()

    def left(self) -> int:
        unfinished = select(func.count()).where(self.entity.status != "done")
        return self.session.scalars(unfinished).one()

    def drain(self) -> list[int]:
        raise NotImplementedError("see `python -m benchmarks drain`")

    def fill_singly(self, jobs: int, shortest: int, longest: int) -> list[float]:
        """Insert jobs one by one, with pauses in milliseconds; return when each was committed."""
        committed = []
        for _ in range(jobs):
            self.fill(1)
            committed.append(time.monotonic())
            time.sleep(random.uniform(shortest, longest) / 1_000)
        return committed

    def insert_for(self, milliseconds: int) -> int:
        """Insert jobs for some time, one with each COMMIT; return how many."""
        jobs, until = 0, time.monotonic() + milliseconds / 1_000
        while time.monotonic() < until:
            self.fill(1)
            jobs += 1
        return jobs

    def serve(self, milliseconds: int) -> dict[str, Any]:
        """Run a worker for some time; return when each handler began, and the processor's time."""
        self.began, cpu = [], time.process_time()
        self._work_for(milliseconds / 1_000)
        return {"began": self.began, "cpu": time.process_time() - cpu}

    @abstractmethod
    def _work_for(self, seconds: float) -> None: ...

    def _note(self, job: Any) -> None:
        self.began.append(time.monotonic())

    def _count(self, *_: object) -> None:
        self.statements += 1


class TheWorker(Serving):
    """A Worker whose reads find new jobs, where its database tells of none."""

    def _work_for(self, seconds: float) -> None:
        worker = Worker(self.engine, JobQueue(self.entity), self._note, concurrency=self.batch)
        self._stop_after(seconds, worker)

    def _stop_after(self, seconds: float, *workers: Worker[Any]) -> None:
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()

    def herd(self, workers: int) -> list[int]:
        """Let workers idle, and insert a job; return their statements in a second before, after."""
        with ExitStack() as stack:
            engine = make_engine(self.url, poolclass=NullPool)
            stack.callback(engine.dispose)
            herd = [
                Worker(engine, JobQueue(self.entity), self._note, owner=f"w{number}")
                for number in range(workers)
            ]
            running = threading.Thread(target=self._stop_after, args=(workers / 10 + 4, *herd))
            running.start()
            stack.callback(running.join)
            time.sleep(workers / 10 + 1)
            counts = [self.statements]
            for jobs in (0, 1):
                self.fill(jobs)
                time.sleep(1)
                counts.append(self.statements)
        return [counts[1] - counts[0], counts[2] - counts[1]]


class TheNotifiedWorker(TheWorker):
    """A Worker that PostgreSQL notifies of new jobs."""

    entity = Notifying

    def flood(self, notes: int) -> None:
        """Notify the workers of nothing, so many times in one transaction."""
        each = "SELECT n::text AS n FROM generate_series(1, :notes) AS n"
        statement = f"SELECT count(pg_notify(:channel, n)) FROM ({each}) AS each"
        table = self.entity.metadata.tables[self.entity.__tablename__]
        channel = channel_of(table, self.session.get_bind())
        self.session.execute(text(statement), {"channel": channel, "notes": notes})
        self.session.commit()


class TheAsyncWorker(Serving):
    """An AsyncWorker."""

    def _work_for(self, seconds: float) -> None:
        asyncio.run(self._awaited(seconds))

    async def _awaited(self, seconds: float) -> None:
        engine = create_async_engine(async_url(self.url))

        async def handle(job: Any) -> None:
            self._note(job)

        worker = AsyncWorker(engine, JobQueue(self.entity), handle, concurrency=self.batch)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(seconds)
        worker.stop()
        await running
        await engine.dispose()


class TheNotifiedAsyncWorker(TheAsyncWorker):
    """An AsyncWorker that PostgreSQL notifies of new jobs."""

    entity = Notifying
