"""huey on SQLite: deletes a task when it takes it, so a crash loses the task."""

from __future__ import annotations

from threading import Event

# Only the peer's environment has it.
from huey import SqliteHuey  # type: ignore[import-not-found]
from huey.consumer import Worker  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import Adapter, file_of, synchronous

#: Seconds to wait for other writers.
TIMEOUT = 60


class Huey(Adapter):
    """The worker of a consumer; keeps no results, and writes each commit through to the disk."""

    def create(self) -> None:
        self._connect()
        self.huey.flush()

    def fill(self, jobs: int) -> None:
        self.task.map(range(1, jobs + 1))

    def left(self) -> int:
        return int(self.huey.pending_count())

    def open(self) -> None:
        self._connect()
        assert not self.drain()

    def drain(self) -> list[int]:
        stopped = Event()
        stopped.set()  # so that the worker does not wait on an empty queue
        worker = Worker(self.huey, stopped, default_delay=0.1, max_delay=0.1, backoff=1)
        done = -1
        while worker.task_count > done:
            done = worker.task_count
            worker.loop()
        return self.run

    def _connect(self) -> None:
        self.huey = SqliteHuey(
            filename=file_of(self.url),
            results=False,
            fsync=synchronous() == "FULL",
            timeout=TIMEOUT,
        )
        self.run: list[int] = []

        def numbered(number: int) -> None:
            self.run.append(number)

        self.task = self.huey.task(name="numbered")(numbered)
