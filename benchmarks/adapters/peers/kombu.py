"""kombu's SQLAlchemy transport: takes messages one by one, and marks them as taken."""

from __future__ import annotations

# Only the peer's environment has it.
from kombu import Connection  # type: ignore[import-not-found]
from sqlalchemy import MetaData, create_engine

from benchmarks.adapters.adapter import Adapter

QUEUE = "bench"


class Kombu(Adapter):
    """get() of a SimpleQueue. A taken message counts as done, so a crash loses it."""

    def create(self) -> None:
        engine = create_engine(self.url)
        old = MetaData()
        old.reflect(engine)
        old.drop_all(engine, [table for name, table in old.tables.items() if "kombu" in name])
        engine.dispose()
        self._connect()

    def fill(self, jobs: int) -> None:
        for number in range(1, jobs + 1):
            self.queue.put(number)

    def left(self) -> int:
        return int(self.queue.qsize())

    def open(self) -> None:
        self._connect()
        assert not self.drain()

    def drain(self) -> list[int]:
        run: list[int] = []
        while True:
            try:
                message = self.queue.get(block=False)
            except self.queue.Empty:
                return run
            run.append(message.payload)
            message.ack()

    def _connect(self) -> None:
        self.queue = Connection(f"sqla+{self.url}").SimpleQueue(QUEUE)
