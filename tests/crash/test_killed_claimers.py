"""A claimer that is killed between its claim and its finish loses nothing."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session, claim, complete
from tests.contract.subscriptions import (
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    kept,
    mark,
)
from tests.models import Email, add_emails, recipients
from tests.support import make_engine, until

from .support import Victim

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: Seconds in which a server has to notice that a process of its own host is gone.
AT_ONCE = 5.0


def claim_and_wait(url: str, strategy: str, told: Connection) -> None:
    """Claim two emails, report them, and wait to be killed."""
    session = Session(make_engine(url))
    told.send(recipients(claim(session, Email, owner="victim", limit=2, strategy=strategy)))
    signal.pause()


@pytest.mark.parametrize("strategy", ["auto", "held"])
def test_a_consumer_that_is_killed_before_its_commit_has_claimed_nothing(
    engine: Engine, strategy: str, db_alias: str
) -> None:
    strategy = "auto" if db_alias == "sqlite" else strategy
    with Session(engine, expire_on_commit=False) as session:
        add_emails(session, "a", "b", "c")
        with Victim(engine, claim_and_wait, strategy) as process:
            assert process.hears() == ["a", "b"]

        def claimed_all() -> bool:
            found = recipients(claim(session, Email, owner="w", limit=5, strategy=strategy))
            session.rollback()
            return found == ["a", "b", "c"]

        until(claimed_all, AT_ONCE)


# -- by advisory locks --------------------------------------------------


def finish_some_and_wait(url: str, told: Connection) -> None:
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


@pytest.mark.only_on("postgresql")
def test_the_unfinished_rows_of_a_killed_advisory_claimer_are_claimable_at_once(
    engine: Engine,
) -> None:
    SubscriptionBase.metadata.create_all(engine)
    with Session(engine) as session:
        add_subscriptions(session, 6)
    with Victim(engine, finish_some_and_wait) as process:
        assert process.hears() == [1, 2, 3, 4, 5]
        with advisory_session(engine) as other:
            assert ids(claim_subscriptions(other, limit=9)) == [6]  # the victim has the others

    found: list[int] = []
    with advisory_session(engine) as session:

        def finished_all() -> bool:
            more = claim_subscriptions(session, limit=9)
            session.commit()
            found.extend(ids(more))
            mark(more)
            complete(session, more)
            session.commit()
            return len(found) == 5

        until(finished_all, AT_ONCE)

    assert sorted(found) == [2, 3, 4, 5, 6]
    with Session(engine) as session:
        assert set(session.scalars(select(Subscription.mailed))) == {1}
    assert kept(engine) == 0
