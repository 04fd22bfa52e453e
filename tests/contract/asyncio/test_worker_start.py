"""An AsyncWorker that starts before its server waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.contract.asyncio.support import DRIVERS_OF_POSTGRESQL, in_event_loop
from tests.contract.asyncio.worker_support import draining, nothing, statuses
from tests.models import Email, add_emails


def refused_by_network(dbapi: Any) -> Exception:
    return ConnectionRefusedError("nobody listens")


def refused_by_server(dbapi: Any) -> Exception:
    refused: Exception = dbapi.Error("the database system is starting up")
    return refused


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL[:1])
@pytest.mark.parametrize("refusal", [refused_by_network, refused_by_server])
@in_event_loop
async def test_an_async_worker_that_starts_before_its_server_waits_for_it(
    async_engine: AsyncEngine, session: Session, refusal: Any
) -> None:
    add_emails(session, *"ab")
    left = [1, 2]

    @event.listens_for(async_engine.sync_engine, "do_connect")
    def refuse(dialect: Any, *args: Any) -> None:
        if left:
            left.pop()
            raise refusal(dialect.loaded_dbapi)

    await asyncio.wait_for(draining(async_engine, JobQueue(Email), nothing).run(), 20)

    assert left == []
    assert set(statuses(session).values()) == {"done"}
