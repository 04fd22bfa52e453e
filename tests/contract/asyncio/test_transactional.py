"""Transactional handlers in an event loop: they get an AsyncSession."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Retry
from tests.contract.asyncio.support import in_event_loop
from tests.contract.worker.fault_injection import FaultInjection
from tests.contract.worker.ledger import Base, Entry, Invoice, add_invoices, entries, statuses
from tests.contract.worker.survival import FEW, MANY, SEED
from tests.support import with_empty_tables

SOON = timedelta(milliseconds=20)
OPTIONS: dict[str, Any] = {"poll": SOON, "backoff": lambda attempts: SOON}


@pytest.fixture
def ledger(engine: Engine) -> Iterator[Session]:
    """A session on the empty tables of the ledger."""
    Base.metadata.create_all(engine)
    with_empty_tables(engine, Base.metadata)
    with Session(engine) as session:
        yield session


async def book(session: AsyncSession, invoice: Invoice) -> None:
    session.add(Entry(name=invoice.name))
    await session.flush()


@pytest.mark.parametrize("factory", [False, True])
@in_event_loop
async def test_effects_and_finish_are_one_commit(
    async_engine: AsyncEngine, ledger: Session, factory: bool
) -> None:
    add_invoices(ledger, "a", "b")
    tried: list[str] = []
    queue = JobQueue(Invoice)

    @queue.handler(transactional=True)
    async def handle(session: AsyncSession, invoice: Invoice) -> Retry | None:
        await book(session, invoice)
        tried.append(invoice.name)
        return Retry(SOON) if tried == ["a"] else None

    bind = async_sessionmaker(async_engine) if factory else async_engine
    await AsyncWorker(bind, queue, drain=True, limit=2, **OPTIONS).run()

    assert (tried, entries(ledger)) == (["a", "b", "a"], ["a", "b"])
    assert statuses(ledger) == {"a": "done", "b": "done"}


@in_event_loop
async def test_a_cancelled_worker_rolls_effects_back_and_releases_the_job(
    async_engine: AsyncEngine, ledger: Session
) -> None:
    add_invoices(ledger, "a")
    begun = asyncio.Event()
    queue = JobQueue(Invoice)

    @queue.handler(transactional=True)
    async def handle(session: AsyncSession, invoice: Invoice) -> None:
        await book(session, invoice)
        begun.set()
        await asyncio.sleep(60)

    run = asyncio.create_task(AsyncWorker(async_engine, queue, **OPTIONS).run())
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "unclaimed"})


@in_event_loop
async def test_a_plain_transactional_handler_is_refused(async_engine: AsyncEngine) -> None:
    queue = JobQueue(Invoice)
    queue.handler(transactional=True)(print)

    with pytest.raises(ArgumentError, match="make it async def"):
        AsyncWorker(async_engine, queue)


@pytest.mark.timeout(600)
@in_event_loop
async def test_each_job_has_one_row_in_the_ledger_whatever_goes_wrong(
    async_engine: AsyncEngine,
    ledger: Session,
    db_url: URL,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(milliseconds=2))
    wanted = MANY if full else FEW
    names = sorted(f"job {number}" for number in range(wanted))
    add_invoices(ledger, *names)
    queue = JobQueue(Invoice)

    def stop_when_done() -> None:
        if set(statuses(ledger).values()) == {"done"}:
            worker.stop()

    faults = FaultInjection(
        async_engine.sync_engine, db_url, seed=SEED, wanted=wanted, when_over=stop_when_done
    )

    @queue.handler(transactional=True)
    async def handle(session: AsyncSession, invoice: Invoice) -> None:
        faults.begin()
        await book(session, invoice)

    worker = AsyncWorker(
        async_engine, queue, owner="w", limit=3, concurrency=2, reap_every=None, **OPTIONS
    )
    with faults:
        await asyncio.wait_for(worker.run(), 500 if full else 60)

    assert entries(ledger) == names
