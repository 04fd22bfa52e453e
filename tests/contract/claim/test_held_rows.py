"""strategy="held" on classes without JobMixin: row locks alone, on every server."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    NotClaimed,
    claim,
    complete,
    fail,
    release,
    start_round,
)
from tests.contract.round_models import Reader, add, emptied
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    ids,
    mark,
)
from tests.support import SERVERS, Sessions, with_empty_tables

pytestmark = pytest.mark.only_on(*SERVERS)

QUEUE = JobQueue(Subscription, NOT_MAILED, order_by=Subscription.id, strategy="held")
READERS: JobQueue[Reader] = JobQueue(Reader, strategy="held")


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return emptied(with_empty_tables(engine, SubscriptionBase.metadata))


def mailed(session: Session) -> list[int]:
    return list(session.scalars(select(Subscription.mailed).order_by(Subscription.id)))


@pytest.mark.parametrize("as_rows", [False, True])
def test_others_pass_over_rows_of_any_class_until_the_transaction_ends(
    new_session: Sessions, as_rows: bool
) -> None:
    one, two = new_session(), new_session()
    add_subscriptions(one, 5)
    claim_some: Any = QUEUE.claim_rows if as_rows else QUEUE.claim

    first, second = claim_some(one, limit=2), claim_some(two, limit=2)
    assert (ids(first), ids(second)) == ([1, 2], [3, 4])
    one.rollback()
    two.rollback()

    assert ids(claim_some(two, limit=2)) == [1, 2]


def test_the_application_marks_the_rows_and_its_commit_frees_the_rest(
    new_session: Sessions,
) -> None:
    one, two = new_session(), new_session()
    add_subscriptions(one, 4)
    claimed = claim(
        one, Subscription, NOT_MAILED, strategy="held", limit=3, order_by=Subscription.id
    )
    mark(claimed[:2])

    complete(one, claimed[:2])
    release(one, claimed[2])
    assert ids(QUEUE.claim(one, limit=9)) == [3, 4]  # which locks them once more
    one.commit()

    assert mailed(one) == [1, 1, 0, 0]
    assert ids(QUEUE.claim(two, limit=9)) == [3, 4]


def test_a_row_that_was_marked_meanwhile_is_not_claimed(new_session: Sessions) -> None:
    one, two = new_session(), new_session()
    add_subscriptions(one, 2)
    assert mailed(two) == [0, 0]
    two.rollback()
    mark(QUEUE.claim(one))
    one.commit()

    assert ids(QUEUE.claim(two, limit=2)) == [2]


def test_a_finish_after_the_commit_and_verbs_that_need_columns_are_refused(
    session: Session,
) -> None:
    add_subscriptions(session, 1)
    claimed = QUEUE.claim(session)

    with pytest.raises(ArgumentError, match="Mark the row yourself and complete"):
        fail(session, claimed)
    session.commit()
    with pytest.raises(NotClaimed, match="in the transaction that claimed it"):
        complete(session, claimed)


@pytest.mark.parametrize("as_rows", [False, True])
def test_a_finish_takes_a_row_out_of_its_round(session: Session, as_rows: bool) -> None:
    add(session, Reader, 3)
    start_round(session, Reader)
    session.commit()

    claimed: Any = (READERS.claim_rows if as_rows else READERS.claim)(session, limit=2)
    complete(session, claimed)
    session.commit()

    rounds = session.scalars(select(Reader.round).order_by(Reader.id)).all()
    assert rounds == [-1, -1, 1]
    assert ids(READERS.claim(session, limit=9)) == [3]
