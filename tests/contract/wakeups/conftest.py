"""The tables of the tests of wake-ups, and a connection that hears what PostgreSQL notifies of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue.events.notes import channel_of
from sa_jobqueue.model.mapping import mapping_of
from tests.contract.wakeups.models import Cargo, Crate, Hostile, Parcel, Postcard, Reader, empty

Heard = Callable[[], list[str]]


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return empty(engine)


@pytest.fixture
def heard(engine: Engine) -> Iterator[Heard]:
    """Return the names of the tables that were notified of since the last call; for psycopg2."""
    tables = [
        mapping_of(entity).table for entity in (Parcel, Postcard, Reader, Hostile, Crate, Cargo)
    ]
    channels = {channel_of(table): table.name for table in tables}
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.autocommit = True
        with driver.cursor() as cursor:
            for channel in channels:
                cursor.execute(f'LISTEN "{channel}"')

        def collect() -> list[str]:
            with driver.cursor() as cursor:
                cursor.execute("SELECT 1")  # the notifications come before the answer
            found = [channels[note.channel] for note in driver.notifies]
            driver.notifies.clear()
            return found

        yield collect
        connection.invalidate()
