"""SQLite in WAL mode: ``PRAGMA data_version`` changes when another connection has committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from .looking import Looking
from .source import Pause

#: The pause between two questions; one takes some microseconds, and reads no page of the file.
BETWEEN = timedelta(milliseconds=3)


class DataVersion(Looking):
    """Tells of the commits of others in the file.

    Its connection is never in a transaction: there the number would not change. Without WAL it
    tells nothing: reading takes a lock there that keeps a writer from its COMMIT.
    """

    often = False

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, often=False)
        self.tells = False
        self._version = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected."""
        with super().opened():
            self.tells = str(self._pragma("journal_mode")).lower() == "wal"
            self._version = self._pragma("data_version")
            yield

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait for a commit."""
        if not self.tells:
            return super().wait(seconds, pause)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            noticed = pause(min(left, BETWEEN.total_seconds()))
            version, self._version = self._version, self._pragma("data_version")
            if version != self._version:
                return True
            if noticed:
                break
        return False

    def _pragma(self, name: str) -> Any:
        return self.ask(lambda connection: _pragma(connection, name))


def _pragma(connection: Connection, name: str) -> Any:
    # Below SQLAlchemy, whose statements take fifty times as long.
    driver: Any = connection.connection.dbapi_connection
    with closing(driver.cursor()) as cursor:
        cursor.execute(f"PRAGMA {name}")
        return cursor.fetchone()[0]
