"""Rows are claimed and finished with a Connection too."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, JobQueue, release
from tests.models import Email, add_emails
from tests.support import MARKING


def statuses(session: Session) -> list[str]:
    return list(session.scalars(select(Email.status).order_by(Email.id)))


@pytest.fixture
def queue(session: Session, strategy: str) -> JobQueue[Email]:
    add_emails(session, "a", "b", "c", "d")
    return JobQueue(Email, strategy=strategy)


@pytest.mark.strategies(*MARKING)
def test_rows_are_claimed_and_finished_with_a_connection(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        queue.claim_rows(connection, owner="w", limit=4)
        connection.rollback()  # as if it had not happened
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.strategies("held")
def test_a_held_claim_lives_in_the_transaction_of_the_connection(
    engine: Engine, session: Session, queue: JobQueue[Email]
) -> None:
    with engine.connect() as connection:
        rows = queue.claim_rows(connection, limit=2)
        queue.complete(connection, rows, delete=True)
        connection.commit()

    assert statuses(session) == ["unclaimed"] * 2
