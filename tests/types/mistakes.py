"""Mistakes in a user's application, which mypy finds.

Each ``type: ignore`` marks a mistake: with --strict, a mark without a mistake is an error.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, claim_statements, fail, reap, start_round
from sa_jobqueue import asyncio as aio
from sa_jobqueue.bulk import BulkLoad, EnqueueSource, InsertSource
from sa_jobqueue.worker import Worker
from tests.types.api import (
    AWAITED,
    OUTBOX,
    PARCELS,
    Email,
    Order,
    Uploads,
    count,
    engine,
    send,
    send_invoice,
)


async def mistakes_awaiting(engine: AsyncEngine, session: AsyncSession) -> None:
    send((await aio.claim(session, Email, owner="w")).first())  # type: ignore[arg-type]  # or None
    await aio.claim(session, Email, owner="w", limit="ten")  # type: ignore[arg-type]
    await aio.complete(session)  # type: ignore[call-arg]
    await AWAITED.claim(session, owner=1.5)  # type: ignore[arg-type]
    await AWAITED.fail(session, retry_in=5)  # type: ignore[call-arg, arg-type]
    await session.run_sync(PARCELS.signal, 5)  # type: ignore[call-arg]  # and the status?
    claim(session, Email, owner="w")  # type: ignore[arg-type]  # JobQueue takes a Session
    aio.AsyncWorker(engine, OUTBOX, send)  # type: ignore[arg-type]  # a plain function is not awaited


def mistakes_loading() -> None:
    BulkLoad(Uploads(), "loads/may")  # type: ignore[arg-type]  # a folder is no log
    InsertSource(engine, Email, [], on_existing="ignore")  # type: ignore[arg-type]
    EnqueueSource(engine, Email, [], visible="never")  # type: ignore[arg-type]


def mistakes(session: Session, order: Order) -> None:
    send(claim(session, Email, owner="w").first())  # type: ignore[arg-type]  # may be None
    claim(session, Email, owner="w", limit="ten")  # type: ignore[arg-type]
    claim(session, Email, owner=1.5)  # type: ignore[arg-type]
    claim(session, owner="w")  # type: ignore[call-arg]
    claim(session, Email, "w")  # type: ignore[arg-type]  # owner= has its name
    fail(session, order, retry_in=5)  # type: ignore[arg-type]
    JobQueue(Email, lease=60)  # type: ignore[arg-type]
    JobQueue(Email).handler(batch=9)(send)  # type: ignore[arg-type]  # it gets a list
    JobQueue(Email, limit_by=3)  # type: ignore[arg-type]
    OUTBOX.stats(session, Email)  # type: ignore[call-arg]  # a queue knows its class
    claim_statements("Email", dialect="sqlite")  # type: ignore[arg-type]
    reap(session, Email, lease=60)  # type: ignore[arg-type]
    start_round(session, Email, chunk="all")  # type: ignore[arg-type]
    Worker(engine, OUTBOX, handle_order)  # type: ignore[arg-type]
    Worker(engine, [Email])  # type: ignore[list-item]  # a class is no queue
    PARCELS.step("unclaimed", during="packing")  # type: ignore[call-arg]
    PARCELS.step("unclaimed", during="packing", then="done")(handle_order)  # type: ignore[arg-type]
    PARCELS.signal(session, order)  # type: ignore[call-arg]


def mistakes_enqueuing(session: Session) -> None:
    send_invoice.enqueue(session)  # type: ignore[call-arg]
    send_invoice.enqueue(session, "7")  # type: ignore[arg-type]
    send_invoice.enqueue(session, 7, True)  # type: ignore[call-arg]
    count.enqueue(session, session)  # type: ignore[arg-type]  # the worker gives the session


def handle_order(order: Order) -> None:
    order.status.upper()
