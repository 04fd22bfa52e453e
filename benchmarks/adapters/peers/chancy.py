"""chancy: takes as many jobs at once as are wanted, and writes them as done once a second."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

# Only the peer's environment has it.
from chancy import Chancy, Queue, Worker, job  # type: ignore[import-not-found]

from benchmarks.adapters.peers.asynchronous import EMPTY, POOL_SIZE, Asynchronous

UNFINISHED = "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')"
QUEUE = "default"

#: The numbers of the jobs that were run; global, since a job is a function of a module.
RUN: list[int] = []


@job(queue=QUEUE)  # type: ignore[untyped-decorator]  # it has no types here
async def numbered(*, number: int) -> None:
    """Remember the number."""
    RUN.append(number)


class Draining(Worker):  # type: ignore[misc]  # it has no types here
    """Sets an event when it found no more jobs and none is running."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.empty = asyncio.Event()

    async def fetch_jobs(self, queue: Any, connection: Any, *, up_to: int = 1) -> list[Any]:
        """Take the next jobs."""
        jobs: list[Any] = await super().fetch_jobs(queue, connection, up_to=up_to)
        if not jobs and not len(self._executors[queue.name]):
            self.empty.set()
        return jobs


class ChancyPeer(Asynchronous):
    """A worker with the executor for asyncio, eager polling, and no plugins.

    The documentation recommends this executor for many short jobs, and eager polling for low
    latency between jobs. Each of the default plugins would only add work.
    """

    async def create(self) -> None:
        await self._connect()
        async with self.chancy.pool.connection() as connection:
            await connection.execute(EMPTY)
        await self.chancy.migrate()
        queue = Queue(
            QUEUE, concurrency=self.batch, executor=Chancy.Executor.Async, eager_polling=True
        )
        await self.chancy.declare(queue, upsert=True)

    async def fill(self, jobs: int) -> None:
        numbers = range(1, jobs + 1)
        made = [numbered.job.with_kwargs(number=number) for number in numbers]
        async for _ in self.chancy.push_many(made):
            pass

    async def left(self) -> int:
        async with self.chancy.pool.connection() as connection:
            found = await (await connection.execute(UNFINISHED)).fetchone()
        return int(found[0])

    async def open(self) -> None:
        await self._connect()
        self.worker = Draining(self.chancy, register_signal_handlers=False)
        await self.worker.start()
        await self.worker.empty.wait()

    async def drain(self) -> list[int]:
        self.worker.empty.clear()
        self.worker.queue_wake_events[QUEUE].set()
        await self.worker.empty.wait()
        await self.worker.flush()
        return RUN

    async def _connect(self) -> None:
        self.chancy = Chancy(
            self.dsn,
            max_connection_pool_size=POOL_SIZE,
            log=logging.getLogger("chancy"),
            no_default_plugins=True,
        )
        await self.chancy.pool.open()
