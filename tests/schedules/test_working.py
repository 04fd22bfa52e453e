"""Schedules that workers run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Engine, update
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue, utc_now
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.schedules import Ran, Schedules
from sa_jobqueue.worker import Worker, scheduler
from tests.models import Email
from tests.processes import two_processes
from tests.running import Run, running, runs
from tests.support import make_engine, until

from .models import SCHEDULES, Base, Report, reports, ticks_of
from .test_run import ROW

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

SECOND = timedelta(seconds=1)


@pytest.fixture(params=["Worker", "AsyncWorker"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    return runs(request.param, engine)


def each_second() -> JobQueue[Report]:
    """Make a queue with a job each second."""
    queue = reports()
    awaited = AsyncJobQueue(queue)
    awaited.every("* * * * * *", name="r", values={"title": "r"}, missed="all")
    return queue


def ticks(session: Session) -> Counter[Any]:
    found = Counter(ticks_of(session))
    session.rollback()
    return found


def done(session: Session) -> int:
    found = session.query(Report).filter(Report.status == "done").count()
    session.rollback()
    return found


def test_a_worker_runs_what_any_queue_of_its_table_declares(run: Run, session: Session) -> None:
    declaring = each_second()

    with run({reports(): lambda report: None}):
        until(lambda: done(session) >= 2)

    assert declaring.handled_by is None
    assert set(ticks(session).values()) == {1}


@pytest.mark.parametrize("kind", ["AUTOCOMMIT", "bound to classes"])
def test_schedules_do_not_depend_on_the_applications_kind_of_sessions(
    engine: Engine, session: Session, kind: str
) -> None:
    bind: Any = engine.execution_options(isolation_level="AUTOCOMMIT")
    if kind != "AUTOCOMMIT":
        bind = sessionmaker(binds={Report: engine})

    with running(bind, {each_second(): lambda report: None}):
        until(lambda: done(session) >= 1)


def work_until_killed(url: str) -> None:
    """Work on reports in a process of its own."""
    with running(make_engine(url), {each_second(): lambda report: None}):
        time.sleep(600)


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
def test_each_tick_comes_once_though_one_of_two_workers_is_killed(
    engine: Engine, session: Session
) -> None:
    url = engine.url.render_as_string(hide_password=False)

    with two_processes(work_until_killed, url) as processes:
        until(lambda: len(ticks(session)) >= 2, seconds=60)  # processes start slowly under load
        processes[0].kill()
        before = len(ticks(session))
        until(lambda: len(ticks(session)) >= before + 3)

    found = ticks(session)
    first, last = min(found), max(found)
    count = int((last - first) / SECOND) + 1
    assert found == Counter(first + number * SECOND for number in range(count))


def test_a_worker_waits_for_the_next_tick_without_asking(engine: Engine, session: Session) -> None:
    queue = reports()
    queue.every("0 0 1 1 *", name="r", values={"title": "r"})
    chore = chore_of(engine, queue)

    chore.run()

    assert [info.name for info in SCHEDULES.all(session)] == ["r"]
    least = scheduler.LOOK_EVERY.total_seconds() / 2
    assert chore.due_at > time.monotonic() + least


def test_of_two_workers_that_come_to_a_tick_the_second_only_reads(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[Ran]] = []
    woken: list[int] = []
    run_due = Schedules.run_due

    def note(*given: Any, **options: Any) -> list[Ran]:
        ran.append(run_due(*given, **options))
        return ran[-1]

    monkeypatch.setattr(Schedules, "run_due", note)
    queue = reports()
    SCHEDULES.add(session, "r", queue, "0 0 1 1 *", values={"title": "r"})
    session.execute(update(ROW).values(run_at=utc_now(), next_tick=utc_now()))
    session.commit()

    for number in (1, 2):
        chore_of(engine, queue, wake=partial(woken.append, number)).run()

    ((first,),) = ran
    assert len(first.ticks) == 1
    assert woken == [1]


def chore_of(
    engine: Engine, queue: JobQueue[Any], wake: Callable[[], None] = lambda: None
) -> scheduler.Scheduler:
    transactions = Worker(engine, queue, print)._transactions
    return scheduler.Scheduler(SCHEDULES, [queue], transactions=transactions, wake=wake)


def test_a_missing_table_of_schedules_is_logged_once_and_ends_no_worker(
    fresh_database: URL, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SOON", SECOND / 10)
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine, [Base.metadata.tables[Report.__tablename__]])
    queue = each_second()

    with Session(engine) as session, running(engine, {queue: lambda report: None}):
        session.add(Report(title="by hand"))
        session.commit()
        until(lambda: done(session) == 1)
        time.sleep(0.5)
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
