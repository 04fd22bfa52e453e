"""A claim sees what was committed, whatever the isolation level of its transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, inspect, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete
from tests.models import Account, Email, add_emails, recipients
from tests.support import MARKING, Sessions


def test_jobs_committed_after_an_empty_claim_are_found_by_the_next(
    session: Session, other: Session, strategy: str
) -> None:
    assert not claim(session, Email, owner="w", strategy=strategy)
    if strategy == "compare_and_set":
        session.commit()  # an open write transaction would keep the other session from inserting
    add_emails(other, "a")

    assert recipients(claim(session, Email, owner="w", strategy=strategy)) == ["a"]


@pytest.mark.only_on("mysql", "mariadb")
def test_new_jobs_are_found_in_a_callers_repeatable_read_transaction(
    new_session: Sessions, other: Session, strategy: str
) -> None:
    session = new_session()  # the engine's default, REPEATABLE READ
    allow_changed_records(session)
    account = Account(name="x")
    session.add(account)
    session.flush()
    assert session.scalars(select(Email)).all() == []  # the snapshot is taken
    add_emails(other, "a", "b")

    found = claim(session, Email, owner="w", limit=2, strategy=strategy)

    assert recipients(found) == ["a", "b"]
    assert found[0].status == ("unclaimed" if strategy == "held" else "claimed")
    assert not inspect(account).expired_attributes


def allow_changed_records(session: Session, *, allowed: bool = True) -> None:
    """Have MariaDB read rows changed since the snapshot; since 11.6.2 it refuses by default."""
    connection = session.connection()
    if connection.dialect.is_mariadb:  # type: ignore[attr-defined]  # on MySQL's dialects
        value = "OFF" if allowed else "ON"
        connection.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {value}")


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_record_changed_since_the_snapshot_is_claimed(
    new_session: Sessions, other: Session, strategy: str, allowed: bool
) -> None:
    add_emails(other, "a", "b")
    session = new_session()
    allow_changed_records(session, allowed=allowed)
    assert len(session.scalars(select(Email.id)).all()) == 2
    other.execute(update(Email).values(subject="changed"))
    other.commit()

    claimed = recipients(claim(session, Email, owner="w", strategy=strategy))
    allow_changed_records(session)  # on this connection, which goes back to its pool

    assert claimed == ["a"]


@pytest.mark.strategies(*MARKING)
@pytest.mark.driver_begins
def test_two_autocommit_claimers_never_share_a_job_and_finish_theirs(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    session, other = new_session(autocommit), new_session(autocommit)
    add_emails(session, *"abcdefgh")

    taken = [
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
        *claim(other, Email, owner="2", limit=3, strategy=strategy),
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
    ]

    assert recipients(taken) == list("abcdefgh")
    assert [email.owner for email in taken] == ["1"] * 3 + ["2"] * 3 + ["1"] * 2
    complete(session, taken[:3])
    complete(other, taken[3:6], delete=True)
    assert session.scalars(select(Email.status).order_by(Email.id)).all() == [
        *["done"] * 3,
        *["claimed"] * 2,
    ]
