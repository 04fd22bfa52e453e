"""The table of schedules is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import MissingTable
from tests.support import make_engine

from .models import SCHEDULES, Base, Report, reports

TABLE = Base.metadata.tables["report_schedules"]

WAY_OUT = "there is no table 'report_schedules' in the database: create .*create_all.* migration"

CALLS: list[Callable[[Session], object]] = [
    SCHEDULES.all,
    lambda session: SCHEDULES.due_in(session, [Report]),
    lambda session: SCHEDULES.run_due(session, [Report]),
    lambda session: SCHEDULES.declare(session, [_hourly()]),
    lambda session: SCHEDULES.add(session, "r", Report, "0 * * * *", values={"title": "r"}),
    lambda session: SCHEDULES.remove(session, "r"),
    lambda session: SCHEDULES.pause(session, "r"),
    lambda session: SCHEDULES.resume(session, "r"),
    lambda session: SCHEDULES.run_now(session, "r", Report),
]


def _hourly() -> object:
    queue = reports()
    queue.every("0 * * * *", name="r", values={"title": "r"})
    return queue


@pytest.fixture
def bare_engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    yield engine
    engine.dispose()


def test_the_error_names_the_way_out(bare_engine: Engine) -> None:
    for call in CALLS:
        with Session(bare_engine) as session, pytest.raises(MissingTable, match=WAY_OUT):
            call(session)


def test_the_way_out_is_not_named_where_another_table_is_missing(bare_engine: Engine) -> None:
    Base.metadata.create_all(bare_engine, [TABLE])

    with Session(bare_engine) as session:
        SCHEDULES.add(session, "r", Report, "0 * * * *", values={"title": "r"})
        with pytest.raises(DBAPIError) as raised:
            SCHEDULES.run_now(session, "r", Report)

    assert "create_all" not in str(raised.value)
    assert "scheduled_report" in str(raised.value)
