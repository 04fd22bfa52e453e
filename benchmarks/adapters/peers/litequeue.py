"""litequeue: takes messages one by one, and marks them as done."""

from __future__ import annotations

# Only the peer's environment has it.
from litequeue import LiteQueue  # type: ignore[import-not-found]

from benchmarks.adapters.adapter import Adapter, file_of, prepare_sqlite

#: Seconds to wait for other writers.
TIMEOUT = 60


class Lite(Adapter):
    """pop() and done()."""

    def create(self) -> None:
        self._connect()
        self.queue.conn.execute(f"DELETE FROM {self.queue.table}")

    def fill(self, jobs: int) -> None:
        with self.queue.transaction():
            for number in range(1, jobs + 1):
                self.queue.put(str(number))

    def left(self) -> int:
        return int(self.queue.qsize())

    def open(self) -> None:
        self._connect()
        assert not self.drain()

    def drain(self) -> list[int]:
        run: list[int] = []
        while message := self.queue.pop():
            run.append(int(message.data))
            self.queue.done(message.message_id)
        return run

    def _connect(self) -> None:
        self.queue = LiteQueue(file_of(self.url), timeout=TIMEOUT)
        # Its default is NORMAL, which may be less than the other adapters pay for.
        prepare_sqlite(self.queue.conn)
