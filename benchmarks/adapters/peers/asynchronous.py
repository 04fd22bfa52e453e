"""What the peers on asyncio have in common: an event loop that lives as long as the process.

Their methods are coroutines, which the host runs. Between two commands the loop stands still, and
with it whatever a worker does by itself.
"""

from __future__ import annotations

import asyncio
import random
import time

# Only the environments of the peers have it.
import uvloop  # type: ignore[import-not-found, unused-ignore]

from benchmarks.adapters.adapter import Adapter, plain

#: Makes a database empty, whatever an earlier drain left in it.
EMPTY = "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public"

#: Connections of a pool: the default of most peers, who say that more are rarely needed.
POOL_SIZE = 10


class Asynchronous(Adapter):
    """An adapter whose methods are coroutines."""

    def __init__(self, url: str, batch: int) -> None:
        super().__init__(url, batch)
        self.dsn = plain(url)
        self.loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    async def fill_singly(self, jobs: int, shortest: int, longest: int) -> list[float]:
        """Insert jobs one by one, with pauses in milliseconds; return when each was committed."""
        committed = []
        for _ in range(jobs):
            await self.fill(1)  # type: ignore[func-returns-value, misc]  # a coroutine here
            committed.append(time.monotonic())
            await asyncio.sleep(random.uniform(shortest, longest) / 1_000)
        return committed
