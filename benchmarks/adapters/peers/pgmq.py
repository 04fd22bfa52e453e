"""pgmq: its SQL functions through psycopg, installed from its Python package.

The package's own client is left out: it runs the same statements, with work around them that costs
time.
"""

from __future__ import annotations

# Only the peer's environment has these.
import psycopg  # type: ignore[import-not-found, unused-ignore]
from pgmq import get_embedded_install_sql, install_pgmq_sql  # type: ignore[import-not-found]
from psycopg.types.json import Jsonb  # type: ignore[import-not-found, unused-ignore]

from benchmarks.adapters.adapter import Adapter, chunks, plain

#: How many seconds a message that was read stays invisible to others.
INVISIBLE = 600
JOBS_AT_ONCE = 10_000

READ = "SELECT msg_id, message FROM pgmq.read('bench', %s, %s)"
DELETE = "SELECT pgmq.delete('bench', %s::bigint[])"
SEND = "SELECT pgmq.send_batch('bench', %s)"
LENGTH = "SELECT queue_length FROM pgmq.metrics('bench')"


class Pgmq(Adapter):
    """read() and delete(), each committed."""

    def create(self) -> None:
        self._connect()
        self.connection.execute("DROP SCHEMA IF EXISTS pgmq CASCADE")
        install_pgmq_sql(get_embedded_install_sql(), dsn=plain(self.url))
        self.connection.execute("SELECT pgmq.create('bench')")

    def fill(self, jobs: int) -> None:
        for numbers in chunks(jobs, JOBS_AT_ONCE):
            self.connection.execute(SEND, ([Jsonb({"number": number}) for number in numbers],))

    def left(self) -> int:
        (found,) = self.connection.execute(LENGTH).fetchall()
        return int(found[0])

    def open(self) -> None:
        self._connect()
        assert not self._read()

    def drain(self) -> list[int]:
        run: list[int] = []
        while messages := self._read():
            run += [message["number"] for _, message in messages]
            self.connection.execute(DELETE, ([number for number, _ in messages],))
        return run

    def _read(self) -> list[tuple[int, dict[str, int]]]:
        found: list[tuple[int, dict[str, int]]]
        found = self.connection.execute(READ, (INVISIBLE, self.batch)).fetchall()
        return found

    def _connect(self) -> None:
        self.connection = psycopg.connect(plain(self.url), autocommit=True)
