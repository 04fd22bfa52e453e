"""A report that takes up to a minute: its snapshot keeps the rows of finished jobs alive."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from tests.chaos.fault import NOTHING, Outage
from tests.models import Task
from tests.support import make_engine

if TYPE_CHECKING:
    from tests.chaos.storm import Storm


class Snapshot(Outage):
    """Keep a snapshot of the database for a while."""

    name = "snapshot"
    down = (10, 60)
    in_trouble = False
    _connection: Connection | None = None

    def __init__(self) -> None:
        super().__init__(self)

    def begin(self, storm: Storm) -> str:
        engine = make_engine(storm.url).execution_options(isolation_level="REPEATABLE READ")
        with suppress(DBAPIError):  # the server is down
            self._connection = connection = engine.connect()
            connection.execute(select(func.count()).select_from(Task))
            return "a snapshot kept for up to a minute"
        return NOTHING

    def end(self, storm: Storm) -> None:
        if self._connection is not None:
            with suppress(DBAPIError):  # the server has ended it
                self._connection.close()
            self._connection.engine.dispose()
            self._connection = None
