"""When the rows of a claim by advisory locks are freed: transactions, errors, connections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    UniqueConstraint,
    delete,
    event,
    exc,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, joinedload, mapped_column

from sa_jobqueue import (
    ClaimLost,
    NotClaimed,
    advisory_session,
    claim,
    complete,
    fail,
    fence_of,
    release,
    with_fence,
)
from sa_jobqueue.strategies import advisory_locks
from tests.contract.subscriptions import (
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
    mark,
)
from tests.models import Email, add_emails, recipients
from tests.support import make_engine, until

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    for metadata in (SubscriptionBase.metadata, SeatBase.metadata):
        metadata.create_all(engine)
        with engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(delete(table))
    yield engine
    assert kept(engine) == 0


@pytest.fixture
def mailing(engine: Engine) -> Iterator[Session]:
    with advisory_session(engine) as session:
        add_subscriptions(session, 5)
        yield session


# -- the outermost commit ------------------------------------------------------


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
    """Freed between the COMMIT and its answer to us at the earliest."""
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
    """As of a test that undoes what the code under test has committed."""
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


def test_after_the_rollback_of_a_finish_a_release_frees_at_once(
    engine: Engine, mailing: Session
) -> None:
    claimed = claim_subscriptions(mailing)
    complete(mailing, claimed)
    mailing.rollback()

    release(mailing, claimed)

    assert kept(engine) == 0


def test_a_finish_in_a_savepoint_is_undone_with_it(engine: Engine, mailing: Session) -> None:
    first, second, third, fourth = claim_subscriptions(mailing, limit=4)
    complete(mailing, first)
    kept_savepoint = mailing.begin_nested()
    complete(mailing, second)
    undone_savepoint = mailing.begin_nested()
    complete(mailing, third)
    undone_savepoint.rollback()
    complete(mailing, fourth)
    kept_savepoint.commit()

    mailing.commit()

    assert kept(engine) == 1
    complete(mailing, third)
    mailing.commit()
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


def test_the_rollback_of_an_outer_savepoint_undoes_the_inner_ones(
    engine: Engine, mailing: Session
) -> None:
    first, second = claim_subscriptions(mailing)
    outer = mailing.begin_nested()
    complete(mailing, first)
    with mailing.begin_nested():
        complete(mailing, second)
    outer.rollback()

    mailing.commit()

    assert kept(engine) == 2


def test_the_rollback_of_a_savepoint_leaves_what_was_finished_before_it(
    engine: Engine, mailing: Session
) -> None:
    first, second = claim_subscriptions(mailing)
    complete(mailing, first)
    savepoint = mailing.begin_nested()
    complete(mailing, second)
    savepoint.rollback()

    mailing.commit()

    assert kept(engine) == 1
    complete(mailing, second)
    mailing.commit()
    assert kept(engine) == 0


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

    assert kept(engine) == 2  # another session would find them unfinished
    with pytest.raises(ClaimLost):
        complete(mailing, claimed)
    mailing.rollback()
    assert kept(engine) == 0


def test_a_finish_by_two_statements_of_one_transaction_frees_both(
    engine: Engine, mailing: Session
) -> None:
    first, second = claim_subscriptions(mailing)

    complete(mailing, first)
    complete(mailing, [first, second])
    mailing.commit()

    assert kept(engine) == 0


class SeatBase(DeclarativeBase):
    pass


class Seat(SeatBase):
    """A class with a constraint that is checked at COMMIT."""

    __tablename__ = "seat"
    __table_args__ = (UniqueConstraint("guest", deferrable=True, initially="DEFERRED"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    guest: Mapped[int]


def claim_a_seat(session: Session) -> Seat:
    session.add_all([Seat(id=1, guest=1), Seat(id=2, guest=2)])
    session.commit()
    seat = claim(session, Seat, strategy="advisory").first()
    assert seat is not None
    return seat


def test_a_failing_commit_keeps_the_rows(engine: Engine, mailing: Session) -> None:
    seat = claim_a_seat(mailing)
    seat.guest = 3 - seat.guest
    complete(mailing, seat)

    with pytest.raises(exc.IntegrityError):
        mailing.commit()

    assert kept(engine) == 1
    mailing.rollback()
    mailing.commit()
    assert kept(engine) == 1
    release(mailing, seat)


def test_the_next_commit_does_not_make_up_for_one_that_failed(engine: Engine) -> None:
    with engine.connect() as connection:
        session = Session(connection, expire_on_commit=False)
        seat = claim_a_seat(session)
        session.commit()
        transaction = connection.begin()
        complete(session, seat)
        connection.execute(update(Seat).values(guest=1))
        session.close()
        with pytest.raises(exc.IntegrityError):
            transaction.commit()
        transaction.rollback()  # SQLAlchemy sends none: the transaction has ended

        with connection.begin():
            connection.execute(select(Seat.id)).all()

        assert kept(engine) == 1


def test_a_commit_that_the_server_answers_with_rollback_keeps_the_rows(
    engine: Engine, mailing: Session
) -> None:
    """PostgreSQL does so, and says no word, if a statement of the transaction has failed."""
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


def test_a_failed_job_is_claimable_after_the_commit(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, "a")
    claimed = claim(mailing, Email, strategy="advisory")

    fail(mailing, claimed, error="x")
    mailing.commit()

    assert kept(engine) == 0


# -- claims that break off -----------------------------------------------------


def break_off(session: Session) -> None:
    """Claim until a row divides by zero, the others before it are locked."""
    with pytest.raises(exc.DataError, match="division by zero"):
        claim_subscriptions(session, 1 / Subscription.divisor > 0, limit=5, order_by=())


@pytest.fixture
def broken(mailing: Session) -> Session:
    """A session that has a row, a lock of its own, and a row that is no number to divide by."""
    mailing.execute(update(Subscription).where(Subscription.id == 4).values(divisor=0))
    mailing.commit()
    assert ids(claim_subscriptions(mailing, limit=1)) == [1]
    mailing.execute(select(func.pg_advisory_lock(1, 2)))
    mailing.execute(select(func.pg_advisory_xact_lock(3, 4)))
    mailing.commit()
    return mailing


def test_a_claim_that_breaks_off_leaves_no_lock_after_the_rollback(
    engine: Engine, broken: Session
) -> None:
    break_off(broken)
    assert kept(engine) > 1 + 1

    broken.rollback()

    assert kept(engine) == 1 + 1  # the row from before, and the lock that is the caller's


def test_nor_after_the_rollback_to_a_savepoint(engine: Engine, broken: Session) -> None:
    savepoint = broken.begin_nested()
    break_off(broken)

    savepoint.rollback()

    assert kept(engine) == 1 + 1
    broken.commit()
    assert kept(engine) == 1 + 1


def test_nor_where_the_check_breaks_off(engine: Engine, broken: Session) -> None:
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


def test_nor_where_a_later_round_breaks_off(engine: Engine, mailing: Session) -> None:
    """What the first round has found is freed too: the caller never sees it."""
    connection = mailing.connection()
    rounds: list[str] = []

    def finish_or_break(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "WHERE subscription.id = ANY" in statement:
            rounds.append(statement)
            if len(rounds) == 2:
                conn.exec_driver_sql("SELECT 1 / 0")
            with Session(engine) as other:
                other.execute(update(Subscription).where(Subscription.id == 1).values(mailed=1))
                other.commit()

    event.listen(connection, "before_cursor_execute", finish_or_break)
    with pytest.raises(exc.DataError):
        claim_subscriptions(mailing)
    event.remove(connection, "before_cursor_execute", finish_or_break)

    mailing.rollback()

    assert kept(engine) == 0


def test_options_that_fail_leave_no_lock(engine: Engine, mailing: Session) -> None:
    with pytest.raises(exc.ArgumentError):
        claim_subscriptions(mailing, options=[joinedload(Email.subject)])

    mailing.commit()

    assert kept(engine) == 0


# -- connections ---------------------------------------------------------------


def test_leaving_the_session_frees_everything(engine: Engine) -> None:
    seen: list[Any] = []

    with pytest.raises(ZeroDivisionError):
        claim_and_fail(engine, seen)

    assert kept(engine) == 0
    session, claimed = seen
    with pytest.raises((NotClaimed, exc.InvalidRequestError)):
        complete(session, claimed)


def claim_and_fail(engine: Engine, seen: list[Any]) -> None:
    with advisory_session(engine) as session:
        add_subscriptions(session, 5)
        claimed = claim_subscriptions(session, limit=5)
        complete(session, claimed[0])
        seen += [session, claimed]
        raise ZeroDivisionError


def test_a_connection_that_goes_back_to_its_pool_keeps_nothing(engine: Engine) -> None:
    connection = engine.connect()
    session = Session(connection)
    add_subscriptions(session, 5)
    claim_subscriptions(session)

    connection.close()

    assert kept(engine) == 0


def test_a_connection_that_is_forgotten_keeps_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(engine) as session:
        add_subscriptions(session, 5)

    def claim_and_forget() -> None:
        claim_subscriptions(Session(engine.connect()))
        assert kept(engine) == 2

    claim_and_forget()
    gc.collect()

    assert kept(engine) == 0
    assert not caplog.records  # a reset that fails ends the connection, and is logged


def test_a_pool_without_reset_keeps_nothing(engine: Engine, db_url: URL) -> None:
    careless = make_engine(db_url, pool_reset_on_return=None)
    with careless.connect() as connection:
        session = Session(connection)
        add_subscriptions(session, 5)
        claim_subscriptions(session)

    assert kept(engine) == 0
    careless.dispose()


def test_a_pool_that_was_disposed_of_keeps_nothing(engine: Engine, db_url: URL) -> None:
    replaced = make_engine(db_url)
    with replaced.connect() as connection, replaced.connect() as holding_the_old_pool:
        holding_the_old_pool.exec_driver_sql("SELECT 1")
        replaced.dispose()
        session = Session(connection)
        add_subscriptions(session, 5)
        claim_subscriptions(session)
        connection.close()

        assert kept(engine) == 0
    replaced.dispose()


def test_a_detached_connection_ends_with_its_locks(engine: Engine) -> None:
    with engine.connect() as connection:
        session = Session(connection)
        add_subscriptions(session, 5)
        claimed = claim_subscriptions(session)
        connection.detach()
        complete(session, claimed[0])
        session.commit()
        assert kept(engine) == 1

    until(lambda: kept(engine) == 0)


def test_claims_go_on_in_the_next_session_on_the_same_connection(engine: Engine) -> None:
    with engine.connect() as connection:
        with Session(connection, expire_on_commit=False) as session:
            add_subscriptions(session, 3)
            fences = claim_subscriptions(session).fences

        with Session(connection) as session:
            assert ids(claim_subscriptions(session)) == [3]
            subscription = with_fence(session.get_one(Subscription, 1), fences[0])
            complete(session, [subscription, fences[1]])
            session.commit()

        assert kept(engine) == 1


def test_a_connection_out_of_the_pool_again_knows_no_claims(engine: Engine) -> None:
    with engine.connect() as connection:
        session = Session(connection)
        add_subscriptions(session, 3)
        fences = claim_subscriptions(session).fences

    with engine.connect() as connection:
        session = Session(connection)
        with pytest.raises(NotClaimed, match="on the connection that claimed it"):
            complete(session, fences)
        assert ids(claim_subscriptions(session)) == [1, 2]


def test_a_finish_on_another_connection_is_refused(engine: Engine, mailing: Session) -> None:
    claimed = claim_subscriptions(mailing)

    for bind in (engine, engine.connect()):
        with Session(bind) as other, pytest.raises(NotClaimed, match="in one advisory_session"):
            complete(other, claimed.fences)
        if isinstance(bind, Connection):
            bind.close()

    assert kept(engine) == 2
    assert fence_of(claimed[0]) == claimed.fences[0]


def terminate(engine: Engine, session: Session) -> None:
    """End the server's side of a session's connection."""
    pid = {"pid": session.scalar(select(func.pg_backend_pid()))}
    with in_autocommit(engine) as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), pid)
        listed = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        until(lambda: connection.scalar(listed, pid) == 0)


def test_a_claim_whose_connection_was_ended_writes_nothing(engine: Engine) -> None:
    with Session(engine) as setup:
        add_emails(setup, "a", "b")
    with advisory_session(engine) as session:
        claimed = claim(session, Email, strategy="advisory", limit=2)
        session.commit()
        terminate(engine, session)

        assert kept(engine) == 0
        with pytest.raises(exc.DBAPIError):
            complete(session, claimed)
        session.rollback()
        with pytest.raises(ClaimLost):
            complete(session, claimed)
        session.rollback()

        again = claim(session, Email, strategy="advisory", limit=2)
        assert recipients(again) == ["a", "b"]
        complete(session, again)
        session.commit()
    with Session(engine) as session:
        assert set(session.scalars(select(Email.status))) == {"done"}


def test_a_commit_that_meets_an_ended_connection_is_an_error(engine: Engine) -> None:
    with Session(engine) as setup:
        add_emails(setup, "a")
    with advisory_session(engine) as session:
        complete(session, claim(session, Email, strategy="advisory"))
        terminate(engine, session)

        with pytest.raises(exc.DBAPIError):
            session.commit()
        session.rollback()

        assert recipients(claim(session, Email, strategy="advisory")) == ["a"]


def test_a_row_that_cannot_be_freed_after_the_commit_is_freed_later(
    engine: Engine,
    mailing: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The COMMIT has been: an error would look as if that had failed."""
    first, second = claim_subscriptions(mailing)
    complete(mailing, first)
    error = mailing.connection().dialect.loaded_dbapi.OperationalError

    def refuse(*_: Any) -> None:
        raise error("cancelled")

    with monkeypatch.context() as patched:
        patched.setattr(advisory_locks, "_run_after", refuse)
        mailing.commit()

    assert "could not be freed: cancelled" in caplog.text
    assert kept(engine) == 2
    mailing.rollback()
    mailing.scalar(select(1))
    mailing.commit()
    assert kept(engine) == 1
    release(mailing, second)
