"""Control and schedules where the application has not created their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, declarative_base

from sa_jobqueue import JobQueue, MissingTable, claim
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

from .conftest import TABLES, Letter

SCHEDULES = Schedules(declarative_base().metadata, name="job_plans")

VERBS: dict[str, tuple[str, Callable[[Session], object]]] = {
    "pause": ("job_pauses", lambda session: pause(session, Letter)),
    "resume": ("job_pauses", lambda session: resume(session, Letter)),
    "paused": ("job_pauses", lambda session: paused(session, tables=TABLES)),
    "workers": ("job_workers", lambda session: workers(session, tables=TABLES)),
    "register": ("job_workers", lambda session: register_worker(session, "w", [Letter])),
    "unregister": ("job_workers", lambda found: unregister_worker(found, "w", tables=TABLES)),
    "request_stop": ("job_stops", lambda session: request_stop(session, claimed(session))),
    "read": ("job_(stops|pauses)", lambda session: read_control(session, [Letter], owner="w")),
    "schedules": ("job_plans", SCHEDULES.all),
    "declare": ("job_plans", lambda session: SCHEDULES.declare(session, [JobQueue(Letter)])),
    "run_due": ("job_plans", lambda session: SCHEDULES.run_due(session, [JobQueue(Letter)])),
    "due_in": ("job_plans", lambda session: SCHEDULES.due_in(session, [JobQueue(Letter)])),
}


pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine of a database that has the table of a queue, and no other."""
    engine = make_engine(fresh_database)
    Letter.metadata.create_all(engine, [Letter.metadata.tables[Letter.__tablename__]])
    yield engine
    engine.dispose()


def claimed(session: Session) -> Any:
    session.add(Letter())
    session.flush()
    return claim(session, Letter, owner="w")[0]


def test_a_missing_table_is_named_with_the_way_out(session: Session) -> None:
    for name, (table, verb) in VERBS.items():
        with pytest.raises(MissingTable, match=f"'{table}'.*create_all.*migration"):
            pytest.fail(f"{name}: {verb(session)}")
        session.rollback()


def test_another_error_of_the_database_is_raised_as_it_is(engine: Engine, session: Session) -> None:
    TABLES.pauses.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job_pauses RENAME COLUMN since TO until"))
        job = claimed(session)
        session.commit()
        connection.execute(text("DROP TABLE controlled_letter"))

    with pytest.raises(DBAPIError):
        pause(session, Letter)
    session.rollback()
    with pytest.raises(DBAPIError):
        request_stop(session, job)
