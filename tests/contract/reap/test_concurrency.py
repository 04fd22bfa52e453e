"""reap() beside other reapers, finishes and claims; what it reads, locks and logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, claim, complete, fence_of, reap, renew
from tests.contract.plans import fill, rows_read
from tests.contract.reap.support import (
    FORCE,
    HOUR,
    PLAIN,
    claimed,
    grow_old,
    of_the_dead,
    reaped,
    rows,
    statuses,
)
from tests.contract.steps import before, unless_refused
from tests.innodb_locks import locked_rows
from tests.models import Email, Task, add_emails, add_tasks, names
from tests.support import SERVERS, Sessions, impatient, statements_seen

# Side by side with others


@pytest.mark.only_on(*SERVERS)
def test_a_reaper_does_not_wait_for_another(session: Session, other: Session) -> None:
    add_emails(session, *"abcd")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    first = reap(session, Email, limit=2)
    began = time.monotonic()

    second = reap(other, Email)

    assert time.monotonic() - began < 2  # to wait for a lock would take ten seconds
    assert {len(first), len(second)} == {2}


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_finish_waits_for_a_reap_and_reports_lost_claims(
    session: Session, other: Session, end: Callable[[Session], None]
) -> None:
    add_emails(session, "a")
    emails = claimed(session, Email, PLAIN)
    reap(other, Email, max_runtime=FORCE)

    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(complete, session, emails)
        with pytest.raises(TimeoutError):
            finishing.result(0.2)
        end(other)
        error = finishing.exception(10)
    session.commit()

    reaped_first = end is Session.commit
    assert isinstance(error, ClaimLost) is reaped_first
    assert statuses(other) == ["unclaimed" if reaped_first else "done"]


@pytest.mark.parametrize("verb", ["complete", "renew", "claim"])
def test_a_claim_that_changes_between_look_and_lock_is_left_alone(
    engine: Engine, new_session: Sessions, db_alias: str, verb: str
) -> None:
    """Another session finishes, renews or reaps the claim, and may claim anew under its name."""
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a")
    emails = claimed(other, Email, PLAIN)
    grow_old(session, Email, HOUR)
    fence_of(emails[0]).token.dates.append(rows(session, Email, Email.owner_date)[0][0])

    def change() -> None:
        if verb == "claim":
            reap(other, Email)
            claim(other, Email, owner=PLAIN)
        else:
            {"complete": complete, "renew": renew}[verb](other, emails)
        other.commit()

    locking = "SELECT email.id, email.owner AS sa_jobqueue_owner"
    with before(engine, locking, unless_refused(change, other)) as taken:
        found = reaped(session)

    assert taken
    if db_alias == "sqlite":  # we had the write lock before the first look
        assert len(found) == 1
    else:
        assert not found
        assert statuses(session) == ["done" if verb == "complete" else "claimed"]


def test_no_time_of_the_client_is_compared_with_a_claim(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, timedelta(minutes=30), Email.recipient == "a")
    bound: list[Any] = []

    @event.listens_for(engine, "before_cursor_execute")
    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *args: Any) -> None:
        bound.extend(parameters.values() if isinstance(parameters, dict) else parameters)

    try:
        found = reaped(session, lease=timedelta(minutes=20), max_runtime=timedelta(minutes=25))
    finally:
        event.remove(engine, "before_cursor_execute", see)

    assert len(found) == 1
    assert not [value for value in bound if isinstance(value, datetime)]


@pytest.mark.parametrize(
    ("changed", "after"),
    [("status = 'done', owner = NULL", ("done", None)), ("owner = 'x'", ("claimed", "x"))],
)
def test_a_claim_that_changes_behind_a_lost_row_lock_is_not_reported_as_taken_back(
    engine: Engine, session: Session, changed: str, after: tuple[str, str | None]
) -> None:
    """In a Group Replication with several primaries other members' transactions break row locks."""
    add_emails(session, "a", "b", "c")
    of_the_dead(engine, session, Email)
    row = f"UPDATE email SET {changed} WHERE recipient = 'b'"

    with before(engine, "SAVEPOINT", lambda: session.connection().exec_driver_sql(row)):
        found = reaped(session)

    assert len(found) == 2
    assert rows(session, Email, Email.status, Email.owner)[1] == after


# Plans and locks


@pytest.mark.only_on("mysql", "mariadb")
def test_innodb_locks_the_rows_that_are_reaped_and_no_others(
    engine: Engine, session: Session
) -> None:
    fill(engine, "INSERT INTO email (recipient) SELECT 'r'", 2_000)
    claimed(session, Email, "young", 1_000)
    claimed(session, Email, PLAIN, 1_000)
    grow_old(session, Email, HOUR, Email.owner == PLAIN)
    session.connection()

    with statements_seen(engine) as seen:
        found = reap(session, Email, limit=50)

    assert len(found) == 50
    # The optimizer chooses the primary key by itself here, but not on every table.
    (locking,) = [statement for statement in seen if "FOR UPDATE" in statement]
    assert "FORCE INDEX (PRIMARY)" in locking
    # An entry of the primary key for each row, and the index entries that the update left.
    assert locked_rows(session.connection(), "email") <= (
        60 if engine.dialect.name == "mysql" else 200
    )
    session.rollback()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_look_for_claims_reads_only_claimed_rows(engine: Engine, session: Session) -> None:
    fill(engine, "INSERT INTO email (recipient, status) SELECT 'r', 'done'", 20_000)
    session.execute(insert(Email), [{"recipient": "a"} for _ in range(20)])
    claimed(session, Email, PLAIN)
    with engine.connect() as connection:
        connection.execute(text("ANALYZE TABLE email"))
    earlier = rows_read(session.connection())

    assert not reap(session, Email)

    assert rows_read(session.connection()) - earlier < 500
    session.rollback()


# What it says


def test_a_reap_is_logged(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.reap")
    add_tasks(session, "a", "b", max_attempts=1)
    reaped(session, Task)
    assert not caplog.records
    name = of_the_dead(engine, session, Task)

    reaped(session, Task)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("sa_jobqueue.reap", "INFO")
    assert record.getMessage() == f"2 of Task, 2 of them failed; {name}: 2"


def test_odd_owner_names_are_taken_literally(session: Session) -> None:
    """Names with a percent sign or quotes, and names that differ only in case."""
    add_tasks(session, "a", "b", "c")
    for owner in ("100%", "o'clock", "O'Clock"):
        claimed(session, Task, owner, 1)
    grow_old(session, Task, HOUR)

    assert reaped(session, Task).by_owner == {"100%": 1, "o'clock": 1, "O'Clock": 1}

    assert names(claim(session, Task, owner="w", limit=5)) == ["a", "b", "c"]
