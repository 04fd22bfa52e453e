"""What each async driver does: claims beside each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue, claim, complete
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    new_async_session,
)
from tests.models import Email, add_emails, recipients


@pytest.mark.strategies("skip_locked", "candidates", "update_then_select", "held")
@in_event_loop
async def test_a_claim_passes_over_what_another_task_has_locked(
    async_engine: AsyncEngine, session: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email, strategy=strategy))
    async with new_async_session(async_engine) as one, new_async_session(async_engine) as two:
        first = await queue.claim(one, owner="one", limit=2)
        if strategy == "update_then_select":  # other connections would wait for its locks
            await one.commit()

        second = await queue.claim(two, owner="two", limit=4)

        assert recipients(first) == ["a", "b"]
        assert recipients(second) == ["c", "d"]
        await two.rollback()
        await queue.complete(one, first)
        await one.commit()
    assert session.scalars(select(Email.status).order_by(Email.id)).all()[:2] == ["done", "done"]


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_candidates_are_drawn_from_another_session(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    queue = AsyncJobQueue(JobQueue(Email, strategy="candidates"))
    one_more: Any = partial(claim, entity=Email, strategy="candidates")
    claimed: list[list[str]] = []
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as replica:
        for take in (queue.claim, queue.claim_rows, one_more):
            jobs = await take(own, owner="w", limit=2, candidates_from=replica.sync_session)
            claimed.append(sorted(recipients(jobs)))
            assert replica.in_transaction()
            await replica.rollback()
        await own.commit()

    assert claimed == [["a", "b"], ["c", "d"], ["e", "f"]]


@in_event_loop
async def test_two_claimers_in_autocommit_never_share_a_row(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    engine = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with new_async_session(engine) as one, new_async_session(engine) as two:
        first = await claim(one, Email, owner="one", limit=3)
        second = await claim(two, Email, owner="two", limit=6)
        await complete(one, first)

    assert recipients(first) == ["a", "b", "c"]
    assert recipients(second) == ["d", "e", "f"]
