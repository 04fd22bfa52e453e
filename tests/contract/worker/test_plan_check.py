"""Now and then a worker has the doctor examine its queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue
from sa_jobqueue.events import Event, listen, remove
from sa_jobqueue.prometheus import count_events
from tests.clock import Clock
from tests.contract.owners.restricted_user import restricted_user
from tests.running import Run, running, runs
from tests.support import make_engine, until, with_empty_tables


class Base(DeclarativeBase):
    pass


class Ticket(JobMixin, Base):
    """A queue whose index is dropped."""

    __tablename__ = "examined_ticket"
    id: Mapped[int] = mapped_column(primary_key=True)


(INDEX,) = (index for index in Ticket.__table__.indexes if index.name == "ix_examined_ticket_claim")  # type: ignore[attr-defined]


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = with_empty_tables(make_engine(db_url), Base.metadata)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def tickets() -> JobQueue[Ticket]:
    return JobQueue(Ticket)


@pytest.fixture
def heard(tickets: JobQueue[Ticket]) -> Iterator[list[Event]]:
    """What the queue's workers have examined."""
    heard: list[Event] = []
    listen(tickets, "after_examine", heard.append)
    yield heard
    remove(tickets, "after_examine", heard.append)


@pytest.fixture(params=["Worker", "AsyncWorker"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    return partial(runs(request.param, engine), owner="w")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def handled(engine: Engine) -> int:
    with Session(engine) as session:
        return session.query(Ticket).filter(Ticket.status == "done").count()


def add(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Ticket() for _ in range(5)])


def test_an_index_that_is_dropped_under_load_is_in_the_log_and_in_the_metrics(
    run: Run,
    engine: Engine,
    tickets: JobQueue[Ticket],
    heard: list[Event],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    count_events([tickets], registry=registry)
    caplog.set_level(logging.WARNING, "sa_jobqueue.worker")

    def findings() -> Any:
        return registry.get_sample_value("jobqueue_findings", {"queue": "examined_ticket"})

    add(engine)
    with run({tickets: lambda ticket: None}):
        until(lambda: handled(engine) == 5)
        assert heard == []
        clock.jump(150)  # two minutes after the start
        until(lambda: heard)
        assert [event.count for event in heard if "index" in (event.error or "")] == []
        INDEX.drop(engine)
        add(engine)
        clock.jump(4400)  # an hour later
        until(lambda: any("no index serves" in (event.error or "") for event in heard))
        until(lambda: handled(engine) == 10)
        assert findings() >= 1
        INDEX.create(engine)
        clock.jump(4400)
        until(lambda: "index" not in (heard[-1].error or ""))

    (first, *_) = (record for record in caplog.records if "fix:" in record.message)
    assert first.levelno == logging.ERROR


def test_a_table_that_is_gone_ends_no_worker(
    run: Run, engine: Engine, tickets: JobQueue[Ticket], heard: list[Event], clock: Clock
) -> None:
    add(engine)
    with run({tickets: lambda ticket: None}):
        until(lambda: handled(engine) == 5)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE examined_ticket RENAME TO hidden_ticket"))
        clock.jump(150)
        try:
            until(lambda: heard and "there is no table" in (heard[-1].error or ""))
        finally:
            with engine.begin() as connection:
                connection.execute(text("ALTER TABLE hidden_ticket RENAME TO examined_ticket"))
        add(engine)
        until(lambda: handled(engine) == 10)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_what_a_user_may_not_look_at_is_no_finding(
    engine: Engine, tickets: JobQueue[Ticket], heard: list[Event], clock: Clock
) -> None:
    with (
        restricted_user(engine) as theirs,
        running(theirs, {tickets: lambda ticket: None}, owner="w"),
    ):
        clock.jump_until(lambda: heard)

    assert [event.error for event in heard] == [None]


@pytest.fixture
def grown(engine: Engine) -> Engine:
    """A table that was analyzed when it was empty, and that nobody else analyzes."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE examined_ticket SET (autovacuum_enabled = false)"))
        connection.execute(text("ANALYZE examined_ticket"))
        connection.execute(
            text(
                "INSERT INTO examined_ticket (status, owner) "
                "SELECT 'done', 'w' FROM generate_series(1, 20000)"
            )
        )
    return engine


def rows_known(engine: Engine) -> float:
    with engine.connect() as connection:
        found = text("SELECT reltuples FROM pg_class WHERE relname = 'examined_ticket'")
        known: float = connection.execute(found).scalar_one()
        return known


@pytest.mark.only_on("postgresql")
def test_a_table_that_has_outgrown_its_statistics_is_analyzed(
    run: Run, grown: Engine, tickets: JobQueue[Ticket], clock: Clock
) -> None:
    with run({tickets: lambda ticket: None}):
        clock.jump_until(lambda: rows_known(grown) == 20_000)


@pytest.mark.only_on("postgresql")
def test_where_the_worker_may_not_analyze_the_log_names_the_table_that_has_grown(
    grown: Engine,
    tickets: JobQueue[Ticket],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "sa_jobqueue.worker")

    with (
        restricted_user(grown) as theirs,
        running(theirs, {tickets: lambda ticket: None}, owner="w"),
    ):
        told = "20,000 rows have changed since the table was analyzed"
        clock.jump_until(lambda: told in caplog.text)

    assert rows_known(grown) == 0
