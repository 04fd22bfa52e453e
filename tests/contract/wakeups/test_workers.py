"""An idle worker, which would look by itself once in a minute, starts on a job within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, func, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.events.notes import channel_of
from sa_jobqueue.model.mapping import mapping_of
from tests.contract.wakeups.models import Hostile, Parcel, Postcard, empty
from tests.contract.wakeups.support import (
    SOON,
    Handled,
    add_later,
    elsewhere,
    working,
)
from tests.support import make_engine


@pytest.fixture(params=["wal", "delete"])
def file_of_sqlite(request: pytest.FixtureRequest, fresh_database: URL) -> Iterator[Engine]:
    """An SQLite file with WAL, and one without."""
    engine = make_engine(fresh_database)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA journal_mode={request.param}")
    yield empty(engine)
    engine.dispose()


@pytest.fixture
def watched(engine: Engine, fresh_database: URL, db_alias: str) -> Iterator[Engine]:
    """The engine; on SQLite that of a file with WAL."""
    if db_alias != "sqlite":
        yield engine
        return
    own = make_engine(fresh_database)
    with own.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=wal")
    yield empty(own)
    own.dispose()


@pytest.mark.parametrize("entity", [Parcel, Postcard])
def test_a_job_of_another_process_wakes_an_idle_worker(watched: Engine, entity: type[Any]) -> None:
    handled = Handled()

    with working(watched, entity, handled), elsewhere(watched.url, entity) as add:
        for name in "ab":
            add(name)
            assert handled.next() == name


@pytest.mark.parametrize("order_by", [(), Parcel.id])
def test_a_job_wakes_the_worker_when_it_becomes_due(watched: Engine, order_by: Any) -> None:
    handled, queue = Handled(), JobQueue(Parcel, order_by=order_by)

    with working(watched, queue, handled), elsewhere(watched.url, Parcel) as add:
        add("later", seconds=3)
        add("soon", seconds=1)
        assert handled.next() == "soon"
        assert handled.next() == "later"


@pytest.mark.only_on("sqlite")
def test_producers_and_workers_of_a_process_wake_each_other_with_wal_and_without(
    file_of_sqlite: Engine,
) -> None:
    handled = Handled()

    with working(file_of_sqlite, Parcel, handled), Session(file_of_sqlite) as session:
        session.add(Parcel(name="flushed"))
        session.commit()
        assert handled.next() == "flushed"
        add_later(session, Parcel, "later", seconds=1)
        assert handled.next() == "later"


def test_two_workers_of_a_process_are_both_woken(watched: Engine) -> None:
    handled = Handled()
    both = threading.Barrier(2, timeout=SOON)

    def meet(postcard: Postcard) -> None:
        both.wait()
        handled(postcard)

    with (
        working(watched, Postcard, meet),
        working(watched, Postcard, meet),
        Session(watched) as session,
    ):
        session.add_all([Postcard(name="a"), Postcard(name="a")])
        session.commit()
        assert [handled.next(), handled.next()] == ["a", "a"]


@pytest.mark.only_on("postgresql")
def test_a_job_in_the_pause_after_rings_for_nothing_is_handled_at_its_end(engine: Engine) -> None:
    began = threading.Event()
    channel = channel_of(mapping_of(Hostile).table)
    ring = select(func.pg_notify(channel, ""))

    with (
        working(engine, Hostile, lambda job: began.set()),
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        for _ in range(20):
            connection.execute(ring)
            time.sleep(0.02)
        connection.execute(insert(Hostile))  # as another process would
        connection.execute(ring)
        assert began.wait(SOON / 4)  # long before the connection proves again that it hears
