"""oban-py: takes as many jobs at once as are wanted, and writes them as done one by one."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

# Only the peer's environment has it.
from oban import Job, Oban, telemetry, worker  # type: ignore[import-not-found]
from oban.schema import install  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import chunks
from benchmarks.adapters.peers.asynchronous import EMPTY, POOL_SIZE, Asynchronous

UNFINISHED = (
    "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'scheduled', 'executing', "
    "'retryable')"
)
QUEUE = "default"
JOBS_AT_ONCE = 5_000

#: The numbers of the jobs that were run; global, since oban makes the workers itself.
RUN: list[int] = []


@worker(queue=QUEUE)
class Numbered:
    """A worker that does nothing."""

    new: ClassVar[Any]  # added by the decorator

    async def process(self, job: Job) -> None:
        """Remember the number."""
        RUN.append(job.args["number"])


class ObanPy(Asynchronous):
    """A queue with a limit, in an instance that is started; its producer takes the jobs.

    The pool has the size that oban's guide to production calls comfortable. Finished jobs are
    kept, and oban's pruner deletes them after a day.
    """

    async def create(self) -> None:
        await self._connect()
        async with self.pool.connection() as connection:
            await connection.execute(EMPTY)
        await install(self.pool)
        self.oban = Oban(pool=self.pool)

    async def fill(self, jobs: int) -> None:
        for numbers in chunks(jobs, JOBS_AT_ONCE):
            await self.oban.enqueue_many(Numbered.new({"number": number}) for number in numbers)

    async def left(self) -> int:
        async with self.pool.connection() as connection:
            found = await (await connection.execute(UNFINISHED)).fetchone()
        return int(found[0])

    async def open(self) -> None:
        await self._connect()
        self.empty = asyncio.Event()
        self.written = 0
        telemetry.attach("benchmark", ["oban.producer.ack.stop"], self._count)
        telemetry.attach("benchmark", ["oban.producer.get.stop"], self._look)
        self.node = f"worker-{os.getpid()}"
        self.oban = Oban(pool=self.pool, node=self.node, queues={QUEUE: self.batch})
        await self.oban.start()
        await self.drain()

    async def drain(self) -> list[int]:
        self.empty.clear()
        await self.oban.resume_queue(QUEUE, node=self.node)  # wakes the producer
        await self.empty.wait()
        return RUN

    async def _connect(self) -> None:
        self.pool = await Oban.create_pool(self.dsn, max_size=POOL_SIZE)

    def _count(self, _: str, event: dict[str, Any]) -> None:
        self.written += event["count"]

    def _look(self, _: str, event: dict[str, Any]) -> None:
        if not event["count"] and self.written == len(RUN):
            self.empty.set()
