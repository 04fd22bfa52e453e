"""procrastinate: takes jobs one by one, and runs as many at once as a batch has jobs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

# Only the peer's environment has these.
import psycopg  # type: ignore[import-not-found, unused-ignore]
from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import chunks
from benchmarks.adapters.naps import Naps
from benchmarks.adapters.peers.asynchronous import EMPTY, POOL_SIZE, Asynchronous

UNFINISHED = "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
JOBS_AT_ONCE = 5_000


class Procrastinate(Asynchronous):
    """run_worker_async() until the queue is empty; finished jobs are deleted at once.

    Its guide to finished jobs recommends ``delete_jobs``. The listener is off: no job is added
    while a queue is drained.
    """

    async def create(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(EMPTY)
        await self._connect()
        await self.app.schema_manager.apply_schema_async()

    async def fill(self, jobs: int) -> None:
        for numbers in chunks(jobs, JOBS_AT_ONCE):
            await self.task.batch_defer_async(*({"number": number} for number in numbers))

    async def left(self) -> int:
        found = await self.app.connector.execute_query_one_async(UNFINISHED)
        return int(found["jobs"])

    async def open(self) -> None:
        await self._connect()
        await self.drain()

    async def drain(self) -> list[int]:
        await self.app.run_worker_async(
            concurrency=self.batch,
            wait=False,
            delete_jobs="always",
            listen_notify=False,
            install_signal_handlers=False,
        )
        self.naps.write()
        return self.run

    async def serve(self, milliseconds: int) -> dict[str, Any]:
        """Run a worker for some time; return when each handler began, and the processor's time."""
        self.began, cpu = [], time.process_time()
        work = self.app.run_worker_async(
            concurrency=self.batch, delete_jobs="always", install_signal_handlers=False
        )
        running = asyncio.create_task(work)
        await asyncio.sleep(milliseconds / 1_000)
        running.cancel()
        await asyncio.wait([running])
        return {"began": self.began, "cpu": time.process_time() - cpu}

    async def _connect(self) -> None:
        connector = PsycopgConnector(conninfo=self.dsn, min_size=1, max_size=POOL_SIZE)
        self.app = App(connector=connector)
        self.run: list[int] = []
        self.began: list[float] = []
        self.naps = Naps()

        async def numbered(number: int) -> None:
            self.began.append(time.monotonic())
            if self.naps.kind:
                await self.naps.take_awaited(number)
            self.run.append(number)

        self.task = self.app.task(numbered, name="numbered")
        await self.app.open_async()
