"""What the peers on asyncio have in common: one event loop as long as the process lives.

Between two commands the loop stands still, and with it whatever a worker does by itself.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

# Only the environments of the peers have it.
import uvloop  # type: ignore[import-not-found, unused-ignore]

from benchmarks.adapters.adapter import Adapter, plain

#: Makes a database empty, whatever an earlier drain left in it.
EMPTY = "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public"

#: Connections of a pool. Most peers' default; they say that more are rarely needed.
POOL_SIZE = 10


class Asynchronous(Adapter):
    """An adapter whose methods are coroutines."""

    def __init__(self, url: str, batch: int) -> None:
        super().__init__(url, batch)
        self.dsn = plain(url)
        self.loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def create(self) -> None:
        self.loop.run(self.create_soon())

    def fill(self, jobs: int) -> None:
        self.loop.run(self.fill_soon(range(1, jobs + 1)))

    def left(self) -> int:
        return self.loop.run(self.left_soon())

    def open(self) -> None:
        self.loop.run(self.open_soon())

    def drain(self) -> list[int]:
        return self.loop.run(self.drain_soon())

    @abstractmethod
    async def create_soon(self) -> None:
        """Make an empty queue, and stay connected to fill and count it."""

    @abstractmethod
    async def fill_soon(self, numbers: range) -> None:
        """Insert a job for each number."""

    @abstractmethod
    async def left_soon(self) -> int:
        """Count the jobs that are not finished."""

    @abstractmethod
    async def open_soon(self) -> None:
        """Connect as a worker, and warm up."""

    @abstractmethod
    async def drain_soon(self) -> list[int]:
        """Work until no job is left."""
