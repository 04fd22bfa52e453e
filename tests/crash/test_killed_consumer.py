"""A consumer killed between claim and finish loses nothing."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim, claimed_by, complete, release
from tests.models import Email, add_emails, recipients
from tests.support import make_engine

from .support import Victim

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def claim_and_wait(url: str, strategy: str, commit: bool, told: Connection) -> None:
    """Claim two emails, report them, and wait to be killed."""
    engine = make_engine(url)
    session = Session(engine, expire_on_commit=False)
    emails = claim(session, Email, owner="victim", limit=2, strategy=strategy)
    if commit:
        session.commit()
    told.send(recipients(emails))
    signal.pause()


def kill_a_claimer(engine: Engine, strategy: str, *, commit: bool) -> list[str]:
    """Let a process claim, kill it, and return what it had claimed."""
    with Victim(engine, claim_and_wait, strategy, commit) as process:
        claimed: list[str] = process.hears()
        return claimed


def test_the_rows_of_a_killed_consumer_are_still_claimed_and_can_be_released(
    engine: Engine,
) -> None:
    with Session(engine, expire_on_commit=False) as session:
        add_emails(session, "a", "b", "c")

        claimed = kill_a_claimer(engine, "auto", commit=True)

        assert claimed == ["a", "b"]
        assert recipients(claim(session, Email, owner="other", limit=5)) == ["c"]
        session.rollback()
        found = claimed_by(session, Email, "victim")
        assert recipients(found) == ["a", "b"]
        release(session, found[:1])
        complete(session, found[1:])
        session.commit()
        assert recipients(claim(session, Email, owner="other", limit=5)) == ["a", "c"]
        statuses = session.scalars(select(Email.status).order_by(Email.id))
        assert list(statuses) == ["claimed", "done", "claimed"]


@pytest.mark.parametrize("strategy", ["auto", "held"])
def test_a_consumer_that_is_killed_before_its_commit_has_claimed_nothing(
    engine: Engine, strategy: str, db_alias: str
) -> None:
    with Session(engine, expire_on_commit=False) as session:
        add_emails(session, "a", "b", "c")
        strategy = "auto" if db_alias == "sqlite" else strategy

        kill_a_claimer(engine, strategy, commit=False)

        assert wait_for(session, strategy) == ["a", "b", "c"]


def wait_for(session: Session, strategy: str) -> list[str]:
    """Claim until the server has noticed that the client is gone, which takes a moment."""
    for _ in range(500):
        found = recipients(claim(session, Email, owner="other", limit=5, strategy=strategy))
        if len(found) == 3:
            return found
        session.rollback()
        signal.sigtimedwait([], 0.01)
    return found
