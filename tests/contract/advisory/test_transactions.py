"""A finish is freed by the outermost commit; what is undone is kept, and who goes keeps nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import URL, Engine, exc, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    NotClaimed,
    advisory_session,
    cancel_claimed,
    claim,
    complete,
    fail,
    release,
    renew,
    with_fence,
)
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
    mark,
)
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import heard, make_engine, statements_seen, until

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def mailing(mailing: Session) -> Session:
    """A session with five subscriptions to claim."""
    add_subscriptions(mailing, 5)
    return mailing


# Finished by the commit


def test_a_queue_with_all_mixins_is_finished_as_after_any_claim(
    engine: Engine, mailing: Session
) -> None:
    add_tasks(mailing, "done", "failed", "given up", "released", "renewed", max_attempts=2)
    claimed = claim(mailing, Task, strategy="advisory", owner="w", limit=5)
    done, failed, cancelled_claimed, released, renewed = claimed
    mailing.commit()

    complete(mailing, done)
    fail(mailing, failed, error="no route")
    cancel_claimed(mailing, cancelled_claimed, reason="bounced")
    release(mailing, released)
    renew(mailing, renewed)
    assert kept(engine) == 4
    mailing.commit()

    assert kept(engine) == 1
    complete(mailing, renewed)
    mailing.commit()
    columns = (Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert [tuple(row) for row in mailing.execute(select(*columns).order_by(Task.id))] == [
        ("done", "done", "w", 1, None),
        ("failed", "unclaimed", None, 1, "no route"),
        ("given up", "cancelled", "w", 1, "bounced"),
        ("released", "unclaimed", None, 0, None),
        ("renewed", "done", "w", 1, None),
    ]
    assert (done.status, failed.attempts) == ("done", 1)


def test_without_the_mixin_a_finish_writes_nothing_and_the_caller_marks_the_rows(
    engine: Engine, mailing: Session
) -> None:
    queue = JobQueue(Subscription, NOT_MAILED, order_by=Subscription.id, strategy="advisory")
    rows = queue.claim_rows(mailing)
    second, third = claim_subscriptions(mailing, limit=2)
    mailing.delete(second)
    third.mailed = 1

    with statements_seen(engine) as seen:
        complete(mailing, [*rows.fences, second, third])
        mailing.commit()

    assert [line.split()[0] for line in seen] == ["UPDATE", "DELETE"]
    assert kept(engine) == 0
    assert ids(mailing.scalars(select(Subscription).order_by(Subscription.id))) == [1, 3, 4, 5]
    assert set(rows[0]._mapping) == {"id", "kind", "mailed", "divisor"}


def test_a_job_queue_claims_rows_and_turns(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, *"abcd")
    queue = JobQueue(Email, Email.recipient != "c", strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    turned = queue.turn(mailing, rows, limit=2, delete=True)

    assert [row.recipient for row in rows] == ["a", "b"]
    assert recipients(turned) == ["d"]
    assert kept(engine) == 3
    mailing.commit()
    assert kept(engine) == 1


def test_nobody_has_a_row_before_the_finish_is_visible(engine: Engine, mailing: Session) -> None:
    """The rows are freed between the COMMIT and its answer at the earliest."""
    claimed = claim_subscriptions(mailing, limit=5)
    mark(claimed)
    complete(mailing, claimed)

    with advisory_session(engine) as other:
        assert not claim_subscriptions(other, limit=5)
        mailing.commit()
        assert not claim_subscriptions(other, limit=5)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    "mode", ["conditional_savepoint", "create_savepoint", "rollback_only", "control_fully"]
)
def test_a_joined_session_frees_rows_with_the_outer_commit(
    engine: Engine, mailing: Session, mode: Any, end: str
) -> None:
    """A test may undo by the outer transaction what the code under test has committed."""
    with engine.connect() as connection:
        outer = connection.begin()
        session = Session(connection, join_transaction_mode=mode, expire_on_commit=False)
        claimed = claim_subscriptions(session)
        complete(session, claimed)
        session.commit()
        session.close()
        if mode == "control_fully":
            assert kept(engine) == 0
            return
        assert kept(engine) == 2

        getattr(outer, end)()

        assert kept(engine) == (0 if end == "commit" else 2)
        if end == "rollback":
            release(session, claimed)
            assert kept(engine) == 0


# What is undone


def commit_after_an_error(session: Session) -> None:
    """Commit, which PostgreSQL answers with ROLLBACK and no error."""
    with pytest.raises(exc.DataError):
        session.execute(text("SELECT 1 / 0"))
    session.commit()


def fail_to_commit(session: Session) -> None:
    """Break a constraint that is checked at COMMIT."""
    unique = "guest int UNIQUE DEFERRABLE INITIALLY DEFERRED"
    session.execute(text(f"CREATE TEMPORARY TABLE seat ({unique}) ON COMMIT DROP"))
    session.execute(text("INSERT INTO seat VALUES (1), (1)"))
    with pytest.raises(exc.IntegrityError):
        session.commit()
    session.rollback()


@pytest.mark.parametrize("end", [Session.rollback, commit_after_an_error, fail_to_commit])
def test_a_finish_that_is_not_committed_keeps_the_rows(
    engine: Engine, mailing: Session, end: Any
) -> None:
    claimed = claim_subscriptions(mailing)
    mark(claimed)
    complete(mailing, claimed)

    end(mailing)

    assert kept(engine) == 2
    assert set(mailing.scalars(select(Subscription.mailed))) == {0}
    mailing.commit()
    assert kept(engine) == 2
    complete(mailing, claimed[0])
    mailing.commit()
    assert kept(engine) == 1


def test_a_finish_that_a_savepoint_undoes_is_made_again_or_its_row_is_claimed_again(
    engine: Engine, mailing: Session
) -> None:
    again, freed = claim_subscriptions(mailing)
    with mailing.begin_nested() as savepoint:
        mark([again, freed])
        complete(mailing, [again, freed])
        savepoint.rollback()
    mark([again])
    complete(mailing, again)

    assert kept(engine) == 2
    mailing.commit()

    assert kept(engine) == 0
    with pytest.raises(ClaimLost):
        complete(mailing, freed)
    mailing.rollback()
    assert ids(claim_subscriptions(mailing, limit=1)) == [freed.id]


def test_a_claim_in_a_savepoint_outlives_it(engine: Engine, mailing: Session) -> None:
    savepoint = mailing.begin_nested()
    claimed = claim_subscriptions(mailing)
    savepoint.rollback()

    assert kept(engine) == 2
    complete(mailing, claimed.fences)
    mailing.commit()
    assert kept(engine) == 0


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


# Claims that break off


@pytest.mark.parametrize("where", ["the rows", "their check"])
def test_a_claim_that_breaks_off_leaves_no_lock(
    engine: Engine, mailing: Session, where: str
) -> None:
    mailing.execute(update(Subscription).where(Subscription.id == 4).values(divisor=0))
    mailing.commit()
    assert ids(claim_subscriptions(mailing, limit=1)) == [1]
    mailing.execute(select(func.pg_advisory_lock(1, 2)))
    mailing.execute(select(func.pg_advisory_xact_lock(3, 4)))
    mailing.commit()

    def break_off(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "WHERE subscription.id = ANY" in statement:
            raise ZeroDivisionError

    if where == "the rows":
        with pytest.raises(exc.DataError, match="division by zero"):
            claim_subscriptions(mailing, 1 / Subscription.divisor > 0, limit=5, order_by=())
    else:
        breaking = heard(mailing.connection(), "before_cursor_execute", break_off)
        with breaking, pytest.raises(ZeroDivisionError):
            claim_subscriptions(mailing)
    assert kept(engine) > 1 + 1
    mailing.rollback()

    assert ids(claim_subscriptions(mailing, limit=1)) == [2]
    assert kept(engine) == 2 + 1  # the two rows, and the caller's own lock


# Connections


def test_leaving_the_session_frees_everything(engine: Engine, mailing: Session) -> None:
    with suppress(ZeroDivisionError), advisory_session(engine) as session:
        claimed = claim_subscriptions(session, limit=5)
        complete(session, claimed[0])
        raise ZeroDivisionError

    assert kept(engine) == 0
    with pytest.raises((NotClaimed, exc.InvalidRequestError)):
        complete(session, claimed)


def test_claims_go_on_in_the_next_session_on_the_same_connection(
    engine: Engine, mailing: Session
) -> None:
    with engine.connect() as connection:
        with Session(connection, expire_on_commit=False) as session:
            fences = claim_subscriptions(session).fences

        with Session(connection) as session:
            assert ids(claim_subscriptions(session, limit=1)) == [3]
            subscription = with_fence(session.get_one(Subscription, 1), fences[0])
            complete(session, [subscription, fences[1]])
            session.commit()

        assert kept(engine) == 1


@pytest.mark.parametrize("reset", ["rollback", None])
def test_a_connection_out_of_its_pool_again_has_no_lock_and_knows_no_claim(
    engine: Engine, mailing: Session, db_url: URL, reset: Any
) -> None:
    pool = make_engine(db_url, pool_reset_on_return=reset)
    with pool.connect() as connection:
        fences = claim_subscriptions(Session(connection)).fences
    assert kept(engine) == 0

    with pool.connect() as connection:
        session = Session(connection)
        with pytest.raises(NotClaimed, match="only the connection that made a claim"):
            complete(session, fences)
        assert ids(claim_subscriptions(session)) == [1, 2]
    pool.dispose()


def test_a_finish_on_another_connection_is_refused(engine: Engine, mailing: Session) -> None:
    claimed = claim_subscriptions(mailing)

    with engine.connect() as connection:
        for bind in (engine, connection):
            with Session(bind) as other, pytest.raises(NotClaimed, match="in one advisory_session"):
                complete(other, claimed.fences)

    assert kept(engine) == 2


def terminate(engine: Engine, session: Session) -> None:
    """End the server's side of a session's connection."""
    pid = {"pid": session.scalar(select(func.pg_backend_pid()))}
    with in_autocommit(engine) as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), pid)
        listed = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        until(lambda: connection.scalar(listed, pid) == 0)


def test_a_claim_whose_connection_was_ended_is_lost_and_its_commit_is_an_error(
    engine: Engine,
) -> None:
    with Session(engine) as setup:
        add_emails(setup, "a", "b")
    with advisory_session(engine) as session:
        claimed = claim(session, Email, strategy="advisory", limit=2)
        session.commit()
        terminate(engine, session)

        assert kept(engine) == 0
        for error in (exc.DBAPIError, ClaimLost):
            with pytest.raises(error):
                complete(session, claimed)
            session.rollback()

        complete(session, claim(session, Email, strategy="advisory", limit=2))
        terminate(engine, session)
        with pytest.raises(exc.DBAPIError):
            session.commit()
        session.rollback()

        assert recipients(claim(session, Email, strategy="advisory", limit=2)) == ["a", "b"]


def test_a_row_that_cannot_be_freed_after_the_commit_is_freed_later(
    engine: Engine, mailing: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The COMMIT has succeeded; an error would look as if it had failed."""
    first, second = claim_subscriptions(mailing)
    complete(mailing, first)
    driver: Any = mailing.connection().connection.driver_connection
    error = engine.dialect.loaded_dbapi.OperationalError

    def refuse(*_: Any, **__: Any) -> None:
        raise error("cancelled")

    driver.cursor_factory = refuse
    mailing.commit()
    driver.cursor_factory = None

    assert "could not be released: cancelled" in caplog.text
    assert kept(engine) == 2
    mailing.rollback()
    mailing.scalar(select(1))
    mailing.commit()
    assert kept(engine) == 1
    release(mailing, second)
