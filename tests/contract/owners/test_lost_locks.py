"""An owner whose lock is lost goes on under another name."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, Owner, OwnerState, claim, owner_state
from sa_jobqueue.dialects import database_of
from sa_jobqueue.owners.alive import lock_name
from tests.models import Email, add_emails
from tests.support import SERVERS, until

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN


def cut(name: str, engine: Engine) -> None:
    """Have the server end the connection that an owner's lock is on, and wait for the end."""
    with engine.connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        locks = database_of(connection).named_locks()
        holder = locks.holder(connection, lock_name(name))
        assert holder is not None
        process = holder.process
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": process})
        else:
            connection.exec_driver_sql(f"KILL {process}")
        until(lambda: locks.holder(connection, lock_name(name)) is None)


def name_after_loss(owner: Owner, before: str) -> str:
    """Use an owner until it raises that it has lost its lock; return its next name."""
    with pytest.raises(LockLost, match=f"'{before}' has lost its lock"):
        ask_while_it_is(before, owner)
    return owner.name


def ask_while_it_is(before: str, owner: Owner) -> None:
    """Ask an owner for its name until it knows of the lost connection, which takes a moment."""
    while owner.name == before:
        pass


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_raises_once_and_goes_on_under_another_name(
    engine: Engine, session: Session
) -> None:
    with Owner(engine, "mailer") as owner:
        before = owner.name
        cut(before, engine)

        after = name_after_loss(owner, before)

        assert after.startswith("mailer~")
        assert (owner.name, after == before) == (after, False)
        assert owner_state(session, before) is DEAD
        assert owner_state(session, after) is ALIVE


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_does_not_claim_under_the_old_name(
    engine: Engine, session: Session, owner: Owner
) -> None:
    add_emails(session, "a")
    before = owner.name
    cut(before, engine)

    with pytest.raises(LockLost, match="roll back, and claim again"):
        claim_until_lost(session, owner)
    (email,) = claim(session, Email, owner=owner)

    assert email.owner == owner.name != before


def claim_until_lost(session: Session, owner: Owner) -> None:
    while True:
        claim(session, Email, owner=owner)
        session.rollback()


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_is_closed_quietly(engine: Engine, session: Session) -> None:
    with Owner(engine) as owner:
        name = owner.name
        cut(name, engine)

    assert owner_state(session, name) is DEAD


@pytest.mark.only_on(*SERVERS)
def test_a_loss_is_reported_as_soon_as_the_server_is_there_again(
    engine: Engine, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = owner.name
    cut(before, engine)
    with monkeypatch.context() as away:
        away.setattr(type(engine.pool), "connect", no_server)
        away.setattr(type(engine.pool), "recreate", no_server)
        with pytest.raises(ConnectionError):
            ask_while_it_is(before, owner)

    assert name_after_loss(owner, before) != before


def no_server(pool: Any) -> Any:
    raise ConnectionError
