"""Each kind of session is refused by the verbs of the other kind, with the way out."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import ArgumentError
from sa_jobqueue.asyncio import claim
from tests.contract.asyncio.support import in_event_loop
from tests.models import Email


@in_event_loop
async def test_a_synchronous_session_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"an AsyncSession is needed, .* from sa_jobqueue,"):
        await claim(Session(), Email, owner="w")  # type: ignore[arg-type]  # what is refused


def test_an_async_session_is_refused_by_the_synchronous_verbs_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"sa_jobqueue\.asyncio"):
        sa_jobqueue.claim(AsyncSession(), Email, owner="w")  # type: ignore[arg-type]  # refused
