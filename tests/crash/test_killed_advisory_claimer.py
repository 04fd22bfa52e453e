"""A claimer by advisory locks that is killed frees its rows at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session, complete
from tests.contract.subscriptions import (
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    kept,
    mark,
)
from tests.support import make_engine

from .support import Victim

pytestmark = pytest.mark.only_on("postgresql")

#: Seconds in which the server has to notice that a process of its own host is gone.
AT_ONCE = 5.0


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    SubscriptionBase.metadata.create_all(engine)
    with Session(engine) as session:
        add_subscriptions(session, 6)
    yield engine
    engine.dispose()


def claim_and_wait(url: str, told: Connection) -> None:
    """Claim five rows, finish one, begin to finish another, report, and wait to be killed."""
    with advisory_session(make_engine(url)) as session:
        claimed = claim_subscriptions(session, limit=5)
        mark(claimed[:1])
        complete(session, claimed[0])
        session.commit()
        mark(claimed[1:2])
        complete(session, claimed[1])
        told.send(ids(claimed))
        signal.pause()


def kill_a_claimer(engine: Engine) -> list[int]:
    """Let a process claim, kill it, and return what it had claimed."""
    with Victim(engine, claim_and_wait) as process:
        claimed: list[int] = process.hears()
        with advisory_session(engine) as other:
            assert ids(claim_subscriptions(other, limit=9)) == [6]  # the victim has the others
        return claimed


def test_the_unfinished_rows_of_a_killed_claimer_are_claimable_at_once(engine: Engine) -> None:
    claimed = kill_a_claimer(engine)
    killed = time.monotonic()

    with advisory_session(engine) as session:
        found: list[int] = []
        while len(found) < 5 and time.monotonic() < killed + AT_ONCE:
            more = claim_subscriptions(session, limit=9)
            session.commit()
            found += ids(more)
            mark(more)
            complete(session, more)
            session.commit()

    assert claimed == [1, 2, 3, 4, 5]
    assert sorted(found) == [2, 3, 4, 5, 6]
    with Session(engine) as session:
        assert set(session.scalars(select(Subscription.mailed))) == {1}
    assert kept(engine) == 0
