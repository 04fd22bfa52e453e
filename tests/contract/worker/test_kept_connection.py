"""The connection of a worker's turns: kept while turns follow each other, and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, AsyncAdaptedQueuePool, Engine, NullPool, event, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import kept_connection
from tests.contract.asyncio.support import make_async_engine
from tests.contract.worker.support import checkouts_counted, own_database, work
from tests.models import Email, add_emails
from tests.running import running
from tests.support import until

HOUR = timedelta(hours=1)

# The fixture empties the tables, which are those of the engines of these tests, too.
pytestmark = [pytest.mark.strategies("auto"), pytest.mark.usefixtures("engine")]


@contextmanager
def thirty_emails(db_url: URL) -> Iterator[Engine]:
    with own_database(db_url) as engine:
        with Session(engine) as session:
            add_emails(session, *["a"] * 30)
        yield engine


def test_turns_that_follow_each_other_share_a_connection(db_url: URL) -> None:
    with thirty_emails(db_url) as engine:
        with checkouts_counted(engine) as count:
            work(engine, JobQueue(Email), lambda email: None, owner="w", limit=1)

        assert count[0] < 10


def test_turns_in_the_applications_sessions_share_a_connection_too(db_url: URL) -> None:
    opened: list[Session] = []

    class OurSession(Session):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

    with thirty_emails(db_url) as engine:
        with checkouts_counted(engine) as count:
            maker = sessionmaker(engine, class_=OurSession)
            work(maker, JobQueue(Email), lambda email: None, owner="w", limit=1)

        assert count[0] < 10
        assert len(opened) > 30  # one for each turn


def test_turns_in_the_applications_async_sessions_share_a_connection_too(
    db_url: URL, db_alias: str
) -> None:
    driver = {"postgresql": "asyncpg", "sqlite": "aiosqlite"}.get(db_alias, "aiomysql")

    async def handle(email: Email) -> None:
        pass

    async def drain() -> int:
        # The default of aiosqlite before SQLAlchemy 2.0.38 keeps no connections.
        engine = make_async_engine(db_url, driver, poolclass=AsyncAdaptedQueuePool)
        with checkouts_counted(engine.sync_engine) as count:
            await AsyncWorker(
                async_sessionmaker(engine), JobQueue(Email), handle, owner="w", limit=1, drain=True
            ).run()
        await engine.dispose()
        return count[0]

    with thirty_emails(db_url):
        assert asyncio.run(drain()) < 10


# PostgreSQL's default settings allow no prepared transactions.
@pytest.mark.only_on("mysql", "mariadb")
def test_turns_that_commit_in_two_phases_share_a_connection_too(db_url: URL) -> None:
    with thirty_emails(db_url) as engine:
        with checkouts_counted(engine) as count:
            maker = sessionmaker(engine, twophase=True)
            work(maker, JobQueue(Email), lambda email: None, owner="w", limit=1)

        assert count[0] < 10
        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


def test_sessions_that_choose_their_engine_are_given_no_connection(db_url: URL) -> None:
    with thirty_emails(db_url) as engine:
        with checkouts_counted(engine) as count:
            maker = sessionmaker(binds={Email: engine})
            work(maker, JobQueue(Email), lambda email: None, owner="w", limit=1)

        assert count[0] > 30
        with Session(engine) as session:
            assert not session.scalars(select(Email).where(Email.status != "done")).all()


def test_an_idle_worker_holds_no_connection_of_the_pool(db_url: URL) -> None:
    handled = threading.Event()

    with (
        own_database(db_url) as engine,
        running(engine, {Email: lambda email: handled.set()}, owner="w", poll=HOUR),
    ):
        with Session(engine) as session:
            add_emails(session, "a")
        assert handled.wait(30)

        until(lambda: not engine.pool.checkedout())  # type: ignore[attr-defined]  # a QueuePool


def test_the_connection_goes_back_to_the_pool_during_a_long_handler(db_url: URL) -> None:
    waited: list[int] = []

    with own_database(db_url) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b")

        def handle(email: Email) -> None:
            until(lambda: not engine.pool.checkedout())  # type: ignore[attr-defined]  # a QueuePool
            waited.append(email.id)

        work(engine, JobQueue(Email), handle, owner="w", limit=1)

    assert len(waited) == 2


def test_a_pool_with_one_connection_serves_handlers_too(
    db_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connection, "KEPT_FOR", 3600.0)
    seen: list[str] = []

    with own_database(db_url, pool_size=1, max_overflow=0, pool_timeout=2) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b")

        def handle(email: Email) -> None:
            with Session(engine) as session:
                seen.append(session.scalar(text("SELECT 'seen'")) or "")

        work(engine, JobQueue(Email), handle, owner="w", limit=1)

    assert seen == ["seen", "seen"]


def test_a_pool_without_connections_to_keep_is_used_anew_by_each_turn(db_url: URL) -> None:
    handled: list[int] = []

    with own_database(db_url, poolclass=NullPool) as engine:
        with Session(engine) as session:
            add_emails(session, *"abc")

        work(engine, JobQueue(Email), lambda email: handled.append(email.id), owner="w", limit=1)

    assert len(handled) == 3


def test_a_kept_connection_that_dies_costs_no_job(db_url: URL) -> None:
    handled: list[int] = []

    with own_database(db_url) as engine:
        with Session(engine) as session:
            add_emails(session, *"abcd")

        def handle(email: Email) -> None:
            handled.append(email.id)
            if len(handled) == 2:
                for kept in list(in_use):
                    kept.close()  # as a server that goes away closes it

        in_use: set[Any] = set()
        event.listen(engine, "checkout", lambda driver, *_: in_use.add(driver))
        event.listen(engine, "checkin", lambda driver, *_: in_use.discard(driver))
        work(engine, JobQueue(Email), handle, owner="w", limit=1)

    assert sorted(handled) == sorted(set(handled))
    assert len(handled) == 4


def test_a_connection_whose_engine_was_disposed_of_is_closed(db_url: URL) -> None:
    closed: list[object] = []

    with own_database(db_url) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b")
        event.listen(engine, "close", lambda driver, record: closed.append(driver))

        def handle(email: Email) -> None:
            if email.recipient == "a":
                engine.dispose()

        opened: list[object] = []
        event.listen(engine, "connect", lambda driver, record: opened.append(driver))
        work(engine, JobQueue(Email), handle, owner="w", limit=1)
        engine.dispose()

    assert opened
    assert set(map(id, opened)) <= set(map(id, closed))
