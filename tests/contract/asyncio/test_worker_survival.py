"""An AsyncWorker survives faults in a row, at any moment of its turns."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from tests.contract.asyncio.support import in_event_loop
from tests.contract.worker.survival import FEW, MANY, Survival
from tests.models import Task


@pytest.mark.timeout(600)
@in_event_loop
async def test_an_async_worker_survives_faults_in_a_row_and_handles_each_job_once(
    async_engine: AsyncEngine,
    session: Session,
    db_url: URL,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(milliseconds=2))
    survival = Survival(async_engine.sync_engine, db_url, faults=MANY if full else FEW)
    survival.add_jobs(session)

    async def handler(task: Task) -> None:
        survival.handle(task)

    worker = survival.worker = AsyncWorker(
        async_engine,
        JobQueue(Task),
        handler,
        owner="w",
        limit=3,
        concurrency=2,
        poll=timedelta(milliseconds=20),
        reap_every=None,
    )

    with survival.faults:
        await asyncio.wait_for(worker.run(), 500 if full else 240)

    survival.check(session, every_kind=full)
