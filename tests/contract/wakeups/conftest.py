"""The tables of the tests of wake-ups, and a connection that hears what PostgreSQL notifies of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.contract.wakeups.support import Cargo, Crate, Hostile, Parcel, Reader, empty
from tests.support import statements_seen

Heard = Callable[[], list[str]]


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return empty(engine)


@pytest.fixture
def heard(engine: Engine) -> Iterator[Heard]:
    """Return the names of the tables that were notified of since the last call; for psycopg2."""
    jobs = [Parcel(name=""), Reader(), Hostile(), Crate(name=""), Cargo()]
    channels = {channel_of(engine, job): job.__tablename__ for job in jobs}
    with empty(engine).connect() as connection:
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


def channel_of(engine: Engine, job: Any) -> str:
    """Read the channel of a class, as PostgreSQL is told it when a first job is committed."""
    with statements_seen(engine) as seen, Session(engine) as session:
        session.add(job)
        session.commit()
    (channel,) = [text.removeprefix("NOTIFY ") for text in seen if "NOTIFY" in text]
    return channel.strip('"')
