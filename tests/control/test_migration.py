"""Autogenerate sees the control tables, and a queue in use gets them while workers run."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Engine, MetaData, inspect, select
from sqlalchemy.orm import Mapped, Session, declarative_base, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.control import control_tables, pause, resume, workers
from sa_jobqueue.schedules import Schedules

# Inner: workers look for a missing table each ten seconds, which a test does not wait for.
from sa_jobqueue.worker import chores
from tests.migration.test_autogenerate import body, generate
from tests.migration.test_autogenerate import project as project  # a fixture
from tests.running import running
from tests.support import make_engine, until

R = TypeVar("R")

NAMES = {"job_workers", "job_pauses", "job_stops", "job_schedules"}


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    yield engine
    engine.dispose()


def queue_class() -> Any:
    """Map a queue in a metadata of its own."""

    class Invoice(JobMixin, declarative_base()):  # type: ignore[misc]  # a call
        __tablename__ = "invoice"
        id: Mapped[int] = mapped_column(primary_key=True)

    return Invoice


def test_a_queue_in_use_gets_the_tables_and_loses_them_while_its_workers_run(
    project: Config,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_AGAIN", "LOOK_AT_CONTROL_EVERY", "LOOK_AT_SCHEDULES_EVERY"):
        monkeypatch.setattr(chores, name, timedelta(milliseconds=100))
    entity = queue_class()
    project.attributes["metadata"] = entity.metadata
    generate(project, "a1")
    command.upgrade(project, "head")
    tables = control_tables(entity.metadata)
    Schedules(entity.metadata)
    handled = threading.Semaphore(0)

    with running(engine, {entity: lambda invoice: handled.release()}), Session(engine) as reader:
        reader.execute(select(entity)).all()  # a transaction that stays open
        until(lambda: "without control" in caplog.text)
        source = body(generate(project, "a2"), "upgrade")
        command.upgrade(project, "head")
        until(lambda: in_session(engine, lambda session: workers(session, tables=tables)))

        in_session(engine, lambda session: pause(session, entity))
        time.sleep(0.5)  # some looks later
        in_session(engine, lambda session: session.add(entity(status="unclaimed")))
        assert not handled.acquire(timeout=0.5)
        in_session(engine, lambda session: resume(session, entity))
        assert handled.acquire(timeout=30)

        assert body(generate(project, "a3"), "upgrade") == "pass"
        command.downgrade(project, "a1")
        in_session(engine, lambda session: session.add(entity(status="unclaimed")))
        assert handled.acquire(timeout=30)
        reader.rollback()

    (first, *_) = [each for each in caplog.records if "without control" in each.message]
    assert (first.levelno, first.exc_info) == (logging.WARNING, None)
    assert re.search("goes on without control: there is no table 'job_.*create_all", first.message)
    assert all(f"'{name}'" in source for name in NAMES)
    assert NAMES.isdisjoint(inspect(engine).get_table_names())


def in_session(engine: Engine, work: Callable[[Session], R]) -> R:
    """Do something in a transaction, and commit it."""
    with Session(engine) as session, session.begin():
        return work(session)


@pytest.mark.only_on("postgresql")
def test_the_control_tables_may_have_a_schema_of_their_own() -> None:
    tables = control_tables(MetaData(schema="app"), schema="control")

    assert tables.pauses.fullname == "control.job_pauses"
    assert control_tables(MetaData(schema="app")).pauses.fullname == "app.job_pauses"
