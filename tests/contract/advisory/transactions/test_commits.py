"""The outermost commit of a finish frees the rows of an advisory claim."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, advisory_session, complete, release
from tests.contract.subscriptions import (
    Subscription,
    add_subscriptions,
    claim_subscriptions,
    kept,
    mark,
)

pytestmark = pytest.mark.only_on("postgresql")


def test_a_batch_is_freed_by_the_commit_of_its_finish(engine: Engine, mailing: Session) -> None:
    claimed = claim_subscriptions(mailing)
    mailing.commit()
    assert kept(engine) == 2

    mark(claimed)
    complete(mailing, claimed)
    assert kept(engine) == 2
    mailing.commit()

    assert kept(engine) == 0
    with pytest.raises(ClaimLost):
        complete(mailing, claimed)


def test_an_item_is_freed_by_the_commit_of_its_finish(engine: Engine, mailing: Session) -> None:
    counts = []
    for subscription in claim_subscriptions(mailing, limit=3):
        mark([subscription])
        complete(mailing, subscription)
        mailing.commit()
        counts.append(kept(engine))

    assert counts == [2, 1, 0]


def test_nobody_has_a_row_before_the_finish_is_visible(engine: Engine, mailing: Session) -> None:
    """The rows are freed between the COMMIT and its answer at the earliest."""
    claimed = claim_subscriptions(mailing, limit=5)
    mark(claimed)
    complete(mailing, claimed)

    with advisory_session(engine) as other:
        assert not claim_subscriptions(other, limit=5)
        mailing.commit()
        assert not claim_subscriptions(other, limit=5)


MODES = ("conditional_savepoint", "create_savepoint", "rollback_only", "control_fully")


@pytest.mark.parametrize("mode", MODES)
def test_a_joined_session_frees_nothing_before_the_outer_commit(engine: Engine, mode: Any) -> None:
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            session.add_all(Subscription(id=id_) for id_ in (1, 2))
            session.flush()
            claimed = claim_subscriptions(session)
            mark(claimed)

            complete(session, claimed)
            session.commit()

            assert kept(engine) == (0 if mode == "control_fully" else 2)
        if mode != "control_fully":
            outer.commit()

        assert kept(engine) == 0


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "rollback_only"])
def test_the_rollback_of_the_outer_transaction_keeps_the_rows(engine: Engine, mode: Any) -> None:
    """A test may undo in this way what the code under test has committed."""
    with Session(engine) as setup:
        add_subscriptions(setup, 3)
    with engine.connect() as connection:
        outer = connection.begin()
        session = Session(connection, join_transaction_mode=mode, expire_on_commit=False)
        claimed = claim_subscriptions(session)
        complete(session, claimed)
        session.commit()

        session.close()
        outer.rollback()

        assert kept(engine) == 2
        release(session, claimed)
        assert kept(engine) == 0


def test_a_transaction_of_the_connection_counts_too(engine: Engine) -> None:
    with engine.connect() as connection:
        session = Session(connection, expire_on_commit=False)
        add_subscriptions(session, 2)
        with connection.begin():
            complete(session, claim_subscriptions(session))
            session.commit()
            assert kept(engine) == 2

        assert kept(engine) == 0


def test_a_commit_without_a_finish_frees_nothing(engine: Engine, mailing: Session) -> None:
    claimed = claim_subscriptions(mailing)
    mark(claimed)

    mailing.commit()

    assert kept(engine) == 2
    complete(mailing, claimed)
    mailing.commit()
    assert kept(engine) == 0
