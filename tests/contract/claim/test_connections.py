"""Rows are claimed and finished with a Connection too."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobQueue,
    cancel,
    claim,
    complete,
    fail,
    release,
    renew,
    retry,
)
from tests.models import Email, Task, add_emails, add_tasks
from tests.support import MARKING, statements_seen


def statuses(session: Session) -> list[str]:
    return list(session.scalars(select(Email.status).order_by(Email.id)))


@pytest.fixture
def queue(session: Session, strategy: str) -> JobQueue[Email]:
    add_emails(session, "a", "b", "c", "d")
    session.commit()
    return JobQueue(Email, strategy=strategy)


@pytest.mark.strategies(*MARKING)
def test_rows_are_claimed_and_finished_with_a_connection(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        rows = queue.claim_rows(connection, owner="w", limit=4)
        connection.commit()
        queue.complete(connection, rows.fences[0])
        queue.release(connection, rows.fences[1])
        queue.fail(connection, rows.fences[2], error="broken")
        queue.renew(connection, rows.fences[3])
        connection.commit()

    assert [row.recipient for row in rows] == ["a", "b", "c", "d"]
    assert statuses(session) == ["done", "unclaimed", "failed", "claimed"]


@pytest.mark.strategies(*MARKING)
def test_what_a_connection_rolls_back_did_not_happen(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        queue.claim_rows(connection, owner="w", limit=2)
        connection.rollback()

    assert statuses(session) == ["unclaimed"] * 4


@pytest.mark.strategies(*MARKING)
def test_a_lost_claim_is_reported_to_a_connection_too(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        rows = queue.claim_rows(connection, owner="w", limit=2)
        connection.commit()
        release(session, rows.fences[0])
        session.commit()

        with pytest.raises(ClaimLost) as lost:
            queue.complete(connection, rows)

    assert (lost.value.lost, lost.value.kept) == ((rows[0],), (rows[1],))


@pytest.mark.strategies("held")
def test_a_held_claim_lives_in_the_transaction_of_the_connection(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        rows = queue.claim_rows(connection, limit=2)
        queue.complete(connection, rows, delete=True)
        connection.commit()

    assert statuses(session) == ["unclaimed"] * 2


@pytest.mark.strategies("held")
def test_a_held_claim_in_a_savepoint_of_a_connection_is_refused(
    engine: Engine, queue: JobQueue[Email]
) -> None:
    with (
        engine.connect() as connection,
        connection.begin_nested(),
        pytest.raises(ArgumentError, match="needs a Session"),
    ):
        queue.claim_rows(connection, limit=2)


@pytest.mark.only_on("postgresql")
def test_advisory_claims_take_a_connection(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    session.commit()
    queue = JobQueue(Email, strategy="advisory")

    with engine.connect() as connection:
        rows = queue.claim_rows(connection, limit=2)
        with engine.connect() as second:
            assert not queue.claim_rows(second, limit=2)
        queue.complete(connection, rows, delete=True)
        connection.commit()

    assert statuses(session) == []


def test_entities_need_a_session(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    session.commit()

    with engine.connect() as connection, pytest.raises(ArgumentError, match="need a Session"):
        claim(connection, Email, owner="w")  # type: ignore[arg-type]  # the mistake under test

    assert statuses(session) == ["unclaimed"]


def test_entities_are_not_finished_with_a_connection(engine: Engine, session: Session) -> None:
    emails = claim(session, Email, owner="w", limit=add_two(session))
    session.commit()

    for verb in (complete, fail, release, renew):
        with engine.connect() as connection, pytest.raises(ArgumentError, match="need a Session"):
            verb(connection, emails)

    assert statuses(session) == ["claimed", "claimed"]


def test_nothing_was_written_when_a_connection_is_refused(engine: Engine, session: Session) -> None:
    emails = add_emails(session, "a")
    session.commit()

    with engine.connect() as connection:
        for verb in (cancel, retry):
            with pytest.raises(ArgumentError, match="need a Session"):
                verb(connection, emails)  # type: ignore[arg-type]  # the mistake under test
        connection.commit()

    assert statuses(session) == ["unclaimed"]


def add_two(session: Session) -> int:
    add_emails(session, "a", "b")
    session.commit()
    return 2


def test_tasks_of_all_priorities_are_claimed_in_order(engine: Engine, session: Session) -> None:
    add_tasks(session, "late", priority=5)
    add_tasks(session, "soon", priority=1)
    session.commit()

    with engine.connect() as connection:
        rows = JobQueue(Task).claim_rows(connection, owner="w", limit=2)

    assert [row.name for row in rows] == ["soon", "late"]


@pytest.mark.only_on("mysql", "mariadb")
def test_a_transaction_that_a_connection_begins_reads_what_is_committed(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    session.commit()

    with engine.connect() as connection, statements_seen(engine) as seen:
        JobQueue(Email).claim_rows(connection, owner="w")
        JobQueue(Email).claim_rows(connection, owner="w")

    assert sum(sql.startswith("SET TRANSACTION ISOLATION") for sql in seen) == 1
