"""What is rolled back keeps its advisory locks, and a claim that breaks off leaves none."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, UniqueConstraint, event, exc, func, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ClaimLost, advisory_session, claim, complete, release
from tests.contract.subscriptions import (
    Subscription,
    add_subscriptions,
    claim_subscriptions,
    ids,
    kept,
    mark,
)
from tests.models import Email, add_emails, recipients
from tests.support import with_empty_tables

pytestmark = pytest.mark.only_on("postgresql")


class SeatBase(DeclarativeBase):
    pass


class Seat(SeatBase):
    """A class with a constraint that is checked at COMMIT."""

    __tablename__ = "seat"
    __table_args__ = (UniqueConstraint("guest", deferrable=True, initially="DEFERRED"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    guest: Mapped[int]


# -- what is undone ------------------------------------------------------------


def test_a_finish_that_is_rolled_back_keeps_the_rows(engine: Engine, mailing: Session) -> None:
    claimed = claim_subscriptions(mailing)
    mark(claimed)
    complete(mailing, claimed)

    mailing.rollback()

    assert kept(engine) == 2
    mailing.commit()
    assert kept(engine) == 2
    complete(mailing, claimed[0])
    mailing.commit()
    assert kept(engine) == 1


def test_a_finish_in_a_savepoint_is_undone_with_it_and_those_within(engine: Engine) -> None:
    with advisory_session(engine.execution_options(logging_token="ours")) as session:
        add_subscriptions(session, 4)
        first, second, third, fourth = claim_subscriptions(session, limit=4)
        complete(session, first)
        with session.begin_nested():
            complete(session, second)
            undone = session.begin_nested()
            with session.begin_nested():
                complete(session, third)
            undone.rollback()
            complete(session, fourth)

        session.commit()

        assert kept(engine) == 1
        complete(session, third)
        session.commit()
        assert kept(engine) == 0


def test_a_finish_in_a_savepoint_of_the_callers_own_sql_is_undone(
    engine: Engine, mailing: Session
) -> None:
    claimed = claim_subscriptions(mailing)
    with mailing.begin_nested():
        mailing.execute(text("SAVEPOINT here"))
        complete(mailing, claimed)
        mailing.execute(text("rollback to HERE;"))

    mailing.commit()

    assert kept(engine) == 2


def test_a_claim_in_a_savepoint_outlives_it(engine: Engine, mailing: Session) -> None:
    savepoint = mailing.begin_nested()
    claimed = claim_subscriptions(mailing)
    savepoint.rollback()

    assert kept(engine) == 2
    complete(mailing, claimed.fences)
    mailing.commit()
    assert kept(engine) == 0


def test_a_row_completed_and_then_released_is_freed_however_it_ends(
    engine: Engine, mailing: Session
) -> None:
    claimed = claim_subscriptions(mailing)
    complete(mailing, claimed)

    release(mailing, claimed)

    assert kept(engine) == 2  # else another session would find the rows unfinished
    with pytest.raises(ClaimLost):
        complete(mailing, claimed)
    mailing.rollback()
    assert kept(engine) == 0


def claim_a_seat(engine: Engine, session: Session) -> Seat:
    with_empty_tables(engine, SeatBase.metadata)
    session.add_all([Seat(id=1, guest=1), Seat(id=2, guest=2)])
    session.commit()
    seat = claim(session, Seat, strategy="advisory").first()
    assert seat is not None
    return seat


def test_a_failing_commit_keeps_the_rows(engine: Engine, mailing: Session) -> None:
    seat = claim_a_seat(engine, mailing)
    seat.guest = 3 - seat.guest
    complete(mailing, seat)

    with pytest.raises(exc.IntegrityError):
        mailing.commit()

    assert kept(engine) == 1
    mailing.rollback()
    mailing.commit()
    assert kept(engine) == 1
    release(mailing, seat)


def test_a_commit_that_the_server_answers_with_rollback_keeps_the_rows(
    engine: Engine, mailing: Session
) -> None:
    """PostgreSQL does so without an error if a statement of the transaction has failed."""
    claimed = claim_subscriptions(mailing)
    mark(claimed)
    complete(mailing, claimed)
    with pytest.raises(exc.DataError):
        mailing.execute(text("SELECT 1 / 0"))

    mailing.commit()

    assert mailing.scalars(select(Subscription.id).where(Subscription.mailed == 1)).all() == []
    assert kept(engine) == 2


def test_lost_rows_are_freed_when_the_transaction_ends(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, "a", "b")
    claimed = claim(mailing, Email, strategy="advisory", limit=2)
    with Session(engine) as other:
        by_another_strategy = claim(other, Email, owner="w")
        other.commit()
        assert recipients(by_another_strategy) == ["a"]

    with pytest.raises(ClaimLost) as lost:
        complete(mailing, claimed)
    mailing.rollback()

    assert (recipients(lost.value.lost), recipients(lost.value.kept)) == (["a"], ["b"])
    assert kept(engine) == 1
    complete(mailing, lost.value.kept)
    mailing.commit()
    assert kept(engine) == 0


def break_off(session: Session) -> None:
    """Claim until a row divides by zero; the rows before it are locked by then."""
    with pytest.raises(exc.DataError, match="division by zero"):
        claim_subscriptions(session, 1 / Subscription.divisor > 0, limit=5, order_by=())


@pytest.fixture
def broken(mailing: Session) -> Session:
    """A session with a claimed row, a lock of its own, and a row whose divisor is zero."""
    mailing.execute(update(Subscription).where(Subscription.id == 4).values(divisor=0))
    mailing.commit()
    assert ids(claim_subscriptions(mailing, limit=1)) == [1]
    mailing.execute(select(func.pg_advisory_lock(1, 2)))
    mailing.execute(select(func.pg_advisory_xact_lock(3, 4)))
    mailing.commit()
    return mailing


# -- claims that break off -----------------------------------------------------


def test_a_claim_that_breaks_off_leaves_no_lock_after_the_rollback(
    engine: Engine, broken: Session
) -> None:
    break_off(broken)
    assert kept(engine) > 1 + 1

    broken.rollback()

    assert kept(engine) == 1 + 1  # the row claimed before, and the caller's own lock


def test_a_claim_whose_check_breaks_off_leaves_no_lock(engine: Engine, broken: Session) -> None:
    def break_in_between(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "WHERE subscription.id = ANY" in statement:
            raise ZeroDivisionError

    connection = broken.connection()
    event.listen(connection, "before_cursor_execute", break_in_between)
    with pytest.raises(ZeroDivisionError):
        claim_subscriptions(broken)
    event.remove(connection, "before_cursor_execute", break_in_between)
    assert kept(engine) == 1 + 1 + 2

    assert ids(claim_subscriptions(broken, limit=1)) == [2]

    assert kept(engine) == 2 + 1
