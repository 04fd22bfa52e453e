"""A row that refuses to be taken back keeps no other row from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import reap
from sa_jobqueue.verbs.reap import _Reaper
from tests.contract.reap.support import of_the_dead
from tests.contract.worker.faults import Base, Picky, add_picky, picky_states
from tests.models import Email, add_emails
from tests.support import with_empty_tables


@pytest.fixture
def picky(engine: Engine) -> Engine:
    """The engine with the empty table of Picky."""
    Base.metadata.create_all(engine)
    return with_empty_tables(engine, Base.metadata)


def test_a_row_that_refuses_to_be_taken_back_keeps_its_claim_and_costs_no_other(
    picky: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_picky(session, "a", "b", "stuck", "c", "d")
    of_the_dead(picky, session, Picky)

    reaped = reap(session, Picky)
    session.commit()

    assert len(reaped) == 4
    assert picky_states(session) == {
        **dict.fromkeys("abcd", ("unclaimed", 1)),
        "stuck": ("claimed", 1),
    }
    assert len([text for text in caplog.messages if "cannot be reaped" in text]) == 1


@pytest.mark.driver_begins
def test_a_reap_in_autocommit_leaves_a_row_that_refuses_it(picky: Engine, session: Session) -> None:
    add_picky(session, "stuck", "a")
    of_the_dead(picky, session, Picky)

    with Session(picky.execution_options(isolation_level="AUTOCOMMIT")) as alone:
        assert len(reap(alone, Picky)) == 1

    assert picky_states(session) == {"stuck": ("claimed", 1), "a": ("unclaimed", 1)}


@pytest.fixture
def lost_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the row of "b" be changed between its lock and its reap.

    In a Group Replication with several primaries other members' transactions break row locks.
    """
    lock = _Reaper._lock

    def lose(**changed: Any) -> None:
        def lose_a_lock(reaper: _Reaper, *args: Any) -> Any:
            locked = lock(reaper, *args)
            row: Any = update(Email.__table__)  # type: ignore[arg-type]  # a FromClause to mypy
            reaper.writer.core(row.where(Email.recipient == "b").values(changed))
            return locked

        monkeypatch.setattr(_Reaper, "_lock", lose_a_lock)

    return lose


def test_a_claim_that_ended_behind_a_lost_row_lock_is_not_reported_as_taken_back(
    engine: Engine, session: Session, lost_lock: Callable[..., None]
) -> None:
    add_emails(session, "a", "b", "c")
    of_the_dead(engine, session, Email)

    lost_lock(status="done", owner=None, owner_date=None)
    reaped = reap(session, Email)
    session.commit()

    assert len(reaped) == 2


def test_a_claim_that_was_made_behind_a_lost_row_lock_is_not_taken_back(
    engine: Engine, session: Session, lost_lock: Callable[..., None]
) -> None:
    add_emails(session, "a", "b", "c")
    of_the_dead(engine, session, Email)

    lost_lock(owner="alive", owner_date=datetime.now(UTC))
    reaped = reap(session, Email)
    session.commit()

    assert len(reaped) == 2
    assert session.scalars(select(Email.owner).where(Email.recipient == "b")).one() == "alive"
