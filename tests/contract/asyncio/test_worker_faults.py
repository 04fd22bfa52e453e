"""What goes wrong in a turn of an AsyncWorker costs no other job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.contract.asyncio.support import DRIVERS_OF_POSTGRESQL, in_event_loop
from tests.contract.asyncio.worker_support import draining, nothing, statuses
from tests.contract.worker.faults import (
    KINDS,
    Faults,
    LostAnswer,
    Picky,
    add_picky,
    faults_in,
    picky_states,
)
from tests.contract.worker.faults import Base as PickyBase
from tests.models import Email, add_emails
from tests.support import with_empty_tables


async def drained_with(engine: AsyncEngine, session: Session, faults: Any) -> None:
    """Drain five emails while something goes wrong, and expect each to be handled once."""
    session.rollback()
    with_empty_tables(session.get_bind().engine, Email.metadata)
    add_emails(session, *"abcde")
    handled: Counter[str] = Counter()

    async def handler(email: Email) -> None:
        handled.update(email.recipient)

    worker = draining(engine, JobQueue(Email), handler, limit=2, owner="w", reap_every=None)
    with faults:
        await asyncio.wait_for(worker.run(), 60)

    assert handled == Counter("abcde")
    assert set(statuses(session).values()) == {"done"}


@pytest.mark.parametrize("kind", KINDS)
@in_event_loop
async def test_an_error_at_any_statement_costs_no_job(
    async_engine: AsyncEngine,
    session: Session,
    db_alias: str,
    kind: Callable[[str], Exception],
) -> None:
    def fail(connection: Any) -> None:
        raise kind(db_alias)

    counted = Faults(-1, lambda connection: None)
    await drained_with(async_engine, session, faults_in(async_engine.sync_engine, counted))

    for number in range(counted.seen):
        faults = faults_in(async_engine.sync_engine, Faults(number, fail))
        await drained_with(async_engine, session, faults)


@in_event_loop
async def test_the_answer_of_any_commit_may_be_lost(
    async_engine: AsyncEngine, session: Session
) -> None:
    for number in range(20):
        lost = LostAnswer(async_engine.sync_engine, number)
        await drained_with(async_engine, session, lost)
        if lost.seen <= number:
            break
    assert number > 3


@in_event_loop
async def test_a_job_whose_finish_is_refused_is_failed_alone(
    async_engine: AsyncEngine, session: Session
) -> None:
    PickyBase.metadata.create_all(session.get_bind())
    with_empty_tables(session.get_bind().engine, PickyBase.metadata)
    add_picky(session, "a", "bad", "c")

    await draining(async_engine, JobQueue(Picky), nothing, limit=3).run()

    assert picky_states(session) == {"a": ("done", 1), "bad": ("failed", 2), "c": ("done", 1)}
    error = session.scalars(select(Picky.last_error).where(Picky.name == "bad")).one()
    assert "the finish was refused" in str(error)


@in_event_loop
async def test_a_job_that_can_be_neither_finished_nor_failed_holds_up_no_other(
    async_engine: AsyncEngine, session: Session
) -> None:
    PickyBase.metadata.create_all(session.get_bind())
    with_empty_tables(session.get_bind().engine, PickyBase.metadata)
    add_picky(session, "a", "stuck", "b")

    await draining(async_engine, JobQueue(Picky), nothing, limit=1).run()

    assert picky_states(session) == {"a": ("done", 1), "stuck": ("claimed", 1), "b": ("done", 1)}


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@in_event_loop
async def test_a_locked_row_holds_up_no_other_job(
    session: Session, db_url: URL, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("transactions", "kept_connection"):
        monkeypatch.setattr(f"sa_jobqueue.worker.{module}.LOCK_WAIT", timedelta(milliseconds=200))
    monkeypatch.setattr("sa_jobqueue.worker.turns.UNDIVIDED", timedelta(milliseconds=1))
    monkeypatch.setattr("sa_jobqueue.worker.refusals.UNDIVIDED", timedelta(milliseconds=1))
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.FIRST_PAUSE", timedelta(milliseconds=1))
    with_empty_tables(session.get_bind().engine, Email.metadata)
    add_emails(session, *"abc")
    ended: list[str] = []

    async def handler(email: Email) -> None:
        if email.recipient == "b":
            session.execute(select(Email.id).where(Email.recipient == "b").with_for_update())
        if email.recipient == "c":
            session.rollback()
            assert ended == ["a"]

    engine = create_async_engine(db_url.set(drivername=f"postgresql+{driver}"))
    worker = draining(
        engine,
        JobQueue(Email),
        handler,
        limit=2,
        owner="w",
        on_outcome=lambda email, outcome: ended.append(email.recipient),
    )
    await asyncio.wait_for(worker.run(), 60)
    await engine.dispose()

    assert sorted(ended) == ["a", "b", "c"]
    assert set(statuses(session).values()) == {"done"}
