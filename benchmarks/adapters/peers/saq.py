"""SAQ on PostgreSQL: takes as many jobs as its tasks ask for, and finishes them one by one."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

# Only the peer's environment has these.
import psycopg  # type: ignore[import-not-found, unused-ignore]
from saq import Worker  # type: ignore[import-not-found]
from saq.queue.postgres import PostgresQueue  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import chunks
from benchmarks.adapters.peers.asynchronous import EMPTY, POOL_SIZE, Asynchronous

JOBS_AT_ONCE = 1_000

# At each stop it warns that its periodic tasks were running.
logging.getLogger("saq").setLevel(logging.ERROR)

#: The time to live that deletes a job once it is finished.
FORGET = -1

#: After so many seconds without a job, we ask whether any is left.
QUIET = 0.5


class Saq(Asynchronous):
    """A worker with the concurrency of a batch.

    We stop it from outside: its own burst mode ends once any of its tasks waited too long, even
    if a thousand jobs are left.
    """

    async def create(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(EMPTY)
        self.queue = await self._connected()

    async def fill(self, jobs: int) -> None:
        for numbers in chunks(jobs, JOBS_AT_ONCE):
            await asyncio.gather(
                *(self.queue.enqueue("numbered", number=number, ttl=FORGET) for number in numbers)
            )

    async def left(self) -> int:
        return int(await self.queue.count("incomplete"))

    async def open(self) -> None:
        self.queue = await self._connected()
        await self.drain()
        # Otherwise the listener of the warm-up is notified of each job that is inserted.
        await self.queue.disconnect()
        self.queue = await self._connected()

    async def drain(self) -> list[int]:
        run: list[int] = []
        self.ended_at = time.monotonic()

        async def numbered(_: dict[str, Any], *, number: int) -> None:
            run.append(number)

        async def finished(_: dict[str, Any]) -> None:
            self.ended_at = time.monotonic()

        functions = [("numbered", numbered)]
        worker = Worker(self.queue, functions, concurrency=self.batch, after_process=finished)
        working = asyncio.create_task(worker.start())
        await self._emptied()
        await worker.stop()
        await working
        return run

    async def _emptied(self) -> None:
        """Wait until no job is left; ask only after a quiet time."""
        while True:
            await asyncio.sleep(QUIET)
            quiet = time.monotonic() - (self.ended_at or 0)
            if quiet >= QUIET and not await self.left():
                return

    async def _connected(self) -> PostgresQueue:
        queue = PostgresQueue.from_url(self.dsn, max_size=POOL_SIZE)
        await queue.connect()
        return queue
