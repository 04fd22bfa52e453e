"""A worker claims and finishes with the application's own sessions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Delete,
    Engine,
    StaticPool,
    Update,
    create_engine,
    event,
    select,
)
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker, with_loader_criteria

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Retry, Worker
from tests.contract.asyncio.support import make_async_engine
from tests.contract.worker.support import SOON, states, work
from tests.models import Base, Email, Task, add_emails, add_tasks


class SoftDeleting(Session):
    """A session that does not see what is deleted, and routes by class."""

    def get_bind(self, mapper: Any = None, **given: Any) -> Any:
        assert mapper is not None, "this application routes by class"
        return super().get_bind(mapper=mapper, **given)


@event.listens_for(SoftDeleting, "do_orm_execute")
def _hide_deleted(state: Any) -> None:
    if state.is_select:
        hidden = with_loader_criteria(Email, Email.subject.is_(None))
        state.statement = state.statement.options(hidden)


@pytest.fixture
def six(session: Session) -> Session:
    """Three emails, and three that are deleted."""
    for email in add_emails(session, *"abcdef"):
        if email.recipient in "bdf":
            email.subject = "deleted"
    session.commit()
    return session


def done(session: Session) -> list[str]:
    found = select(Email.recipient).where(Email.status == "done").order_by(Email.id)
    return list(session.scalars(found))


def test_a_sessionmakers_criteria_and_routing_hold_for_claims(engine: Engine, six: Session) -> None:
    maker = sessionmaker(class_=SoftDeleting, binds={Email: engine})
    handled: list[str] = []
    worker: Worker[Email]

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if len(handled) == 3:
            worker.stop()

    worker = Worker(maker, JobQueue(Email), handler, limit=2, poll=SOON)
    worker.run()

    assert handled == ["a", "c", "e"] == done(six)


def test_an_async_sessionmakers_criteria_hold_for_claims(
    engine: Engine, six: Session, db_url: URL, db_alias: str
) -> None:
    driver = {"postgresql": "asyncpg", "sqlite": "aiosqlite"}.get(db_alias, "aiomysql")
    async_engine = make_async_engine(db_url, driver)
    maker = async_sessionmaker(async_engine, sync_session_class=SoftDeleting)

    async def run() -> None:
        async def handler(email: Email) -> None:
            handled.append(email.recipient)
            if len(handled) == 3:
                worker.stop()

        worker = AsyncWorker(maker, JobQueue(Email), handler, limit=2, poll=SOON)
        await worker.run()
        await async_engine.dispose()

    handled: list[str] = []
    asyncio.run(run())

    assert handled == ["a", "c", "e"] == done(six)


def test_a_sessionmaker_on_one_connection_is_refused(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(ArgumentError, match="bound to an Engine"):
        Worker(sessionmaker(connection), JobQueue(Email), lambda email: None)


def test_a_drain_asks_for_remaining_jobs_where_it_writes(engine: Engine, session: Session) -> None:
    """A replica may not show yet that a job waits for its retry."""
    anywhere = {"check_same_thread": False}
    replica = create_engine("sqlite://", poolclass=StaticPool, connect_args=anywhere)
    Base.metadata.create_all(replica, [Task.metadata.tables[Task.__tablename__]])

    class ReadsFromReplica(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **given: Any) -> Any:
            writes = self._flushing or isinstance(clause, Update | Delete)
            return engine if writes else replica

    def handler(task: Task) -> Retry | None:
        return Retry(in_=timedelta(seconds=0.3)) if task.attempts == 1 else None

    add_tasks(session, "a")
    work(sessionmaker(class_=ReadsFromReplica), JobQueue(Task), handler)

    assert states(session)["a"][:2] == ("done", 2)
    replica.dispose()
