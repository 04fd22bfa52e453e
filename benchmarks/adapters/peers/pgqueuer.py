"""PgQueuer: takes jobs in batches, and writes them as done in batches."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

# Only the peer's environment has these.
import asyncpg  # type: ignore[import-untyped, import-not-found, unused-ignore]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import chunks
from benchmarks.adapters.naps import Naps
from benchmarks.adapters.peers.asynchronous import EMPTY, Asynchronous

JOBS_AT_ONCE = 10_000


class Timed(Queries):  # type: ignore[misc]  # it has no types here
    """Remembers when the last jobs were written as done.

    A worker notices an empty queue up to 0.1 seconds late, while other workers have jobs.
    """

    ended_at: float

    async def log_jobs(self, job_status: list[Any]) -> None:
        """Write jobs as done."""
        await super().log_jobs(job_status)
        self.ended_at = time.monotonic()


class PgQueuer(Asynchronous):
    """QueueManager.run() in drain mode, on one connection of asyncpg.

    As its guide to performance recommends: ``pgq autovac`` applied, a single connection and no
    pool for the queue manager, and the default durability.
    """

    async def create(self) -> None:
        await self._connect()
        await self.connection.execute(EMPTY)
        await self.queries.install()
        await self.queries.optimize_autovacuum()

    async def fill(self, jobs: int) -> None:
        for numbers in chunks(jobs, JOBS_AT_ONCE):
            payloads = [b"%d" % number for number in numbers]
            count = len(payloads)
            await self.queries.enqueue(["numbered"] * count, payloads, [0] * count)

    async def left(self) -> int:
        return sum(size.count for size in await self.queries.queue_size())

    async def open(self) -> None:
        await self._connect()
        await self.drain()
        await self.connection.reset()  # or the listener of the warm-up goes on listening

    async def drain(self) -> list[int]:
        run: list[int] = []
        self.times: list[float] = []
        self.queries.ended_at = time.monotonic()
        manager = QueueManager(self.queries)

        naps = Naps()

        @manager.entrypoint("numbered", accepts_context=False)  # type: ignore[untyped-decorator]
        async def numbered(job: Job) -> None:
            if naps.kind:
                await naps.take_awaited(int(job.payload))
            run.append(int(job.payload))
            self.times.append(time.monotonic())

        # Its limit of tasks has to be at least twice the batch.
        limits = {"max_concurrent_tasks": self.batch} if naps.kind else {}
        await manager.run(
            batch_size=self.batch // 2 if naps.kind else self.batch,
            **limits,
            mode=QueueExecutionMode.drain,
            dequeue_timeout=timedelta(seconds=1),
        )
        self.ended_at = self.queries.ended_at
        naps.write()
        return run

    async def batches(self) -> list[tuple[float, int]]:
        """Return when each job was handled; each counts as a batch."""
        return [(moment, 1) for moment in self.times]

    async def serve(self, milliseconds: int) -> dict[str, Any]:
        """Run a worker for some time; return when each handler began, and the processor's time."""
        began: list[float] = []
        cpu = time.process_time()
        manager = QueueManager(self.queries)

        @manager.entrypoint("numbered", accepts_context=False)  # type: ignore[untyped-decorator]
        async def numbered(job: Job) -> None:
            began.append(time.monotonic())

        running = asyncio.create_task(manager.run(batch_size=self.batch))
        await asyncio.sleep(milliseconds / 1_000)
        manager.shutdown.set()
        await running
        return {"began": began, "cpu": time.process_time() - cpu}

    async def _connect(self) -> None:
        self.connection = await asyncpg.connect(self.dsn)
        self.queries = Timed(AsyncpgDriver(self.connection))
