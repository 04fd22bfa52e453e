"""SAQ on PostgreSQL: jobs are taken as many at once as wait for one, and finished one by one."""

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

# It warns at each stop that what it does once in a while was under way.
logging.getLogger("saq").setLevel(logging.ERROR)

#: Nothing is known of a job once it is finished: it is deleted.
FORGET = -1

#: Seconds without a job after which to ask whether any is left.
QUIET = 0.5


class Saq(Asynchronous):
    """A worker with the concurrency of a batch.

    It is stopped from outside: its own burst mode ends once any of its tasks waited too long,
    be there a thousand jobs left.
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
        # The listener of the warm-up would be told of each job that is inserted.
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
        """Wait until no job is left, and ask as rarely as will do."""
        while True:
            await asyncio.sleep(QUIET)
            quiet = time.monotonic() - (self.ended_at or 0)
            if quiet >= QUIET and not await self.left():
                return

    async def _connected(self) -> PostgresQueue:
        queue = PostgresQueue.from_url(self.dsn, max_size=POOL_SIZE)
        await queue.connect()
        return queue
