"""Control and schedules where the application has not created their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import URL, Engine, MetaData, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, MissingTable
from sa_jobqueue.control import (
    pause,
    paused,
    read_control,
    register_worker,
    request_stop,
    resume,
    unregister_worker,
    workers,
)
from sa_jobqueue.schedules import Schedules
from tests.support import make_engine

from .conftest import TABLES, Letter, claimed_letters

PLANS = MetaData()
SCHEDULES = Schedules(PLANS, name="job_plans")

QUEUES = [JobQueue(Letter)]

VERBS: dict[str, list[Callable[[Session], object]]] = {
    "job_pauses": [
        lambda session: pause(session, Letter),
        lambda session: resume(session, Letter),
        lambda session: paused(session, tables=TABLES),
    ],
    "job_workers": [
        lambda session: workers(session, tables=TABLES),
        lambda session: register_worker(session, "w", [Letter]),
        lambda session: unregister_worker(session, "w", tables=TABLES),
    ],
    "job_stops": [lambda session: request_stop(session, claimed_letters(session))],
    "job_(stops|pauses)": [lambda session: read_control(session, [Letter], owner="w")],
    "job_plans": [
        SCHEDULES.all,
        lambda session: SCHEDULES.declare(session, QUEUES),
        lambda session: SCHEDULES.run_due(session, QUEUES),
        lambda session: SCHEDULES.due_in(session, QUEUES),
        lambda session: SCHEDULES.add(session, "r", Letter, "0 * * * *"),
        lambda session: SCHEDULES.remove(session, "r"),
        lambda session: SCHEDULES.pause(session, "r"),
        lambda session: SCHEDULES.resume(session, "r"),
        lambda session: SCHEDULES.run_now(session, "r", Letter),
    ],
}


pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine of a database that has the table of a queue, and no other."""
    engine = make_engine(fresh_database)
    Letter.metadata.create_all(engine, [Letter.metadata.tables[Letter.__tablename__]])
    yield engine
    engine.dispose()


@pytest.mark.parametrize("table", VERBS)
def test_a_missing_table_is_named_with_the_way_out(session: Session, table: str) -> None:
    for number, verb in enumerate(VERBS[table]):
        with pytest.raises(MissingTable, match=f"'{table}'.*create_all.*migration"):
            pytest.fail(f"{number}: {verb(session)}")
        session.rollback()


def test_another_error_of_the_database_is_raised_as_it_is(engine: Engine, session: Session) -> None:
    for metadata in (TABLES.pauses.metadata, PLANS):
        metadata.create_all(engine)
    SCHEDULES.add(session, "r", Letter, "0 * * * *")
    job = claimed_letters(session)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job_pauses RENAME COLUMN since TO until"))
        connection.execute(text("DROP TABLE controlled_letter"))

    for verb in (
        lambda: pause(session, Letter),
        lambda: request_stop(session, job),
        lambda: SCHEDULES.run_now(session, "r", Letter),
    ):
        with pytest.raises(DBAPIError) as raised:
            verb()
        assert "create_all" not in str(raised.value)
        session.rollback()
