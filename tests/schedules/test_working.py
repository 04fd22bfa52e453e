"""Schedules that workers run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue
from tests.models import Email
from tests.running import Run, running, runs
from tests.support import make_engine, statements_seen, until

from .models import SCHEDULES, Base, Report, reports, ticks_of

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


@pytest.fixture(params=["Worker", "AsyncWorker"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    return runs(request.param, engine)


def each_second() -> JobQueue[Report]:
    """Make a queue with a job each second."""
    queue = reports()
    awaited = AsyncJobQueue(queue)
    awaited.every("* * * * * *", name="r", values={"title": "r"}, missed="all")
    return queue


def done(session: Session) -> int:
    found = session.query(Report).filter(Report.status == "done").count()
    session.rollback()
    return found


def test_a_worker_runs_what_any_queue_of_its_table_declares(run: Run, session: Session) -> None:
    declaring = each_second()

    with run({reports(): lambda report: None}, poll=timedelta(minutes=10)):
        until(lambda: done(session) >= 2)

    assert declaring.handled_by is None
    assert set(Counter(ticks_of(session)).values()) == {1}


def test_a_worker_waits_for_the_next_tick_without_asking(engine: Engine, session: Session) -> None:
    queue = reports()
    queue.every("0 0 1 1 *", name="r", values={"title": "r"})

    with running(engine, {queue: print}):
        until(lambda: names(session) == ["r"])
        with statements_seen(engine) as seen:
            time.sleep(1)

    assert sum("report_schedules" in statement for statement in seen) <= 1  # after the declaration


def names(session: Session) -> list[str]:
    found = [info.name for info in SCHEDULES.all(session)]
    session.rollback()
    return found


def test_a_removed_schedule_is_declared_by_the_next_worker_that_starts(
    engine: Engine, session: Session
) -> None:
    declaring = each_second()
    declaring.every("0 0 1 1 *", name="yearly")

    with running(engine, {reports(): print}):
        until(lambda: names(session) == ["r", "yearly"])
        SCHEDULES.remove(session, "yearly")
        session.commit()
        before = len(ticks_of(session))
        session.rollback()
        until(lambda: done(session) > before + 1)  # the worker has looked again
        assert names(session) == ["r"]
    with running(engine, {reports(): print}):
        until(lambda: names(session) == ["r", "yearly"])


def test_a_missing_table_of_schedules_is_logged_once_and_ends_no_worker(
    fresh_database: URL, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine, [Base.metadata.tables[Report.__tablename__]])

    with Session(engine) as session, running(engine, {each_second(): lambda report: None}):
        session.add(Report(title="by hand"))
        session.commit()
        until(lambda: done(session) == 1)
        time.sleep(1.5)  # it tries again meanwhile
        Base.metadata.create_all(engine)
        until(lambda: done(session) >= 3)

    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert record.message.startswith(
        "the worker goes on without schedules: there is no table 'report_schedules'"
    )
    assert "create_all" in record.message
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_schedules_that_nobody_runs_are_warned_of(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    Email.metadata.create_all(engine, [Email.metadata.tables[Email.__tablename__]])
    queue = JobQueue(Email)
    queue.every("* * * * *", name="e", values={"recipient": "a"})

    with running(engine, {queue: print}, reap_every=None):
        until(lambda: caplog.records)

    assert "no worker runs them: make Schedules(metadata)" in caplog.text
