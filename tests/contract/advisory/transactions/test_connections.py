"""Connections take their advisory locks with them, or keep nothing."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, exc, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    NotClaimed,
    advisory_session,
    claim,
    complete,
    fence_of,
    release,
    with_fence,
)
from sa_jobqueue.strategies import advisory_locks
from tests.contract.subscriptions import (
    Subscription,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
)
from tests.models import Email, add_emails, recipients
from tests.support import make_engine, until

pytestmark = pytest.mark.only_on("postgresql")


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


@pytest.mark.parametrize("reset", ["rollback", None])
def test_a_connection_out_of_its_pool_again_has_no_lock_and_knows_no_claim(
    engine: Engine, db_url: URL, reset: Any
) -> None:
    pool = make_engine(db_url, pool_reset_on_return=reset)
    with pool.connect() as connection:
        session = Session(connection)
        add_subscriptions(session, 3)
        fences = claim_subscriptions(session).fences
    assert kept(engine) == 0

    with pool.connect() as connection:
        session = Session(connection)
        with pytest.raises(NotClaimed, match="only the connection that made a claim"):
            complete(session, fences)
        assert ids(claim_subscriptions(session)) == [1, 2]
    pool.dispose()


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
    engine: Engine,
    mailing: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The COMMIT has succeeded; an error would look as if it had failed.

    An inner name is patched, since a connection of psycopg2 takes no methods of ours.
    """
    first, second = claim_subscriptions(mailing)
    complete(mailing, first)
    error = mailing.connection().dialect.loaded_dbapi.OperationalError

    def refuse(*_: Any) -> None:
        raise error("cancelled")

    with monkeypatch.context() as patched:
        patched.setattr(advisory_locks, "_run_after", refuse)
        mailing.commit()

    assert "could not be released: cancelled" in caplog.text
    assert kept(engine) == 2
    mailing.rollback()
    mailing.scalar(select(1))
    mailing.commit()
    assert kept(engine) == 1
    release(mailing, second)
