"""An adapter: a way to queue, behind five methods.

Each process makes an adapter of its own: one process fills the queue, the others work; see
:mod:`benchmarks.harness.host`. This module imports nothing but the standard library: peers run
it in virtual environments of their own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

#: The environment variable that says how SQLite writes to the disk: FULL or NORMAL.
SYNCHRONOUS = "SA_JOBQUEUE_BENCHMARK_SYNCHRONOUS"


class Adapter(ABC):
    """A way to queue.

    Args:
        url: an SQLAlchemy URL of an empty database.
        batch: how many jobs a claim takes; for a queue without batches, how many jobs run at once.

    Attributes:
        retries: how often a transaction was run again after a deadlock.
        ended_at: when the last job was finished, by ``time.monotonic()``. Set by an adapter that
            takes time to notice that no job is left; otherwise the time when drain() returns
            counts.
    """

    def __init__(self, url: str, batch: int) -> None:
        self.url = url
        self.batch = batch
        self.retries = 0
        self.ended_at: float | None = None

    @abstractmethod
    def create(self) -> None:
        """Make an empty queue; remove what an earlier run left."""

    @abstractmethod
    def fill(self, jobs: int) -> None:
        """Insert jobs with the numbers 1 to `jobs`, in the fastest way that is recommended."""

    @abstractmethod
    def left(self) -> int:
        """Return how many jobs are not finished."""

    @abstractmethod
    def open(self) -> None:
        """Connect as a worker, and warm up on the queue while it is empty."""

    @abstractmethod
    def drain(self) -> list[int]:
        """Work until no job is left, and return the numbers of the jobs that were run."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Disconnect."""


def chunks(jobs: int, size: int) -> Iterator[range]:
    """Cut the numbers of the jobs into ranges, each for an insert."""
    for first in range(1, jobs + 1, size):
        yield range(first, min(first + size, jobs + 1))


def plain(url: str) -> str:
    """Return an SQLAlchemy URL without the driver, as other libraries read it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


def connect_arguments(url: str) -> dict[str, str | int]:
    """Take a URL apart for a driver: host, port, user, password, database."""
    parts = urlsplit(url)
    found = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
        "database": parts.path.removeprefix("/"),
    }
    return {name: value for name, value in found.items() if value is not None}


def file_of(url: str) -> str:
    """Return the path in the URL of an SQLite database."""
    return urlsplit(url).path.removeprefix("/")


def synchronous() -> str:
    """Return how SQLite writes to the disk: FULL at each commit, NORMAL at checkpoints only."""
    return os.environ.get(SYNCHRONOUS, "FULL")


def prepare_sqlite(driver: Any) -> None:
    """Set a new connection up: every adapter writes to the disk in the same way."""
    driver.execute("PRAGMA journal_mode=WAL")
    driver.execute(f"PRAGMA synchronous={synchronous()}")
