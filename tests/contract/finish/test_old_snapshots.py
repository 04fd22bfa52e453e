"""Verbs in a caller's transaction that has read before others changed the rows.

MariaDB's innodb_snapshot_isolation, on by default since 11.6, refuses the writes of such a
transaction to those rows. The verbs are not refused: they compare what they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Claim,
    ClaimLost,
    cancel,
    cancel_claimed,
    claim,
    complete,
    fail,
    release,
    renew,
    reprioritize,
    retry,
)
from tests.contract.finish.support import statuses
from tests.models import Email, Task, add_tasks
from tests.support import Sessions

pytestmark = [pytest.mark.only_on("mysql", "mariadb"), pytest.mark.strategies("auto")]


@pytest.fixture(params=["ON", "OFF"])
def reader(
    request: pytest.FixtureRequest, engine: Engine, new_session: Sessions, db_alias: str
) -> Iterator[Session]:
    """Open a REPEATABLE READ session, with both settings of MariaDB."""
    if db_alias == "mysql" and request.param == "ON":
        pytest.skip("MySQL has no innodb_snapshot_isolation")
    with engine.connect() as connection:
        if db_alias == "mariadb":
            setting = f"SET SESSION innodb_snapshot_isolation = {request.param}"
            connection.exec_driver_sql(setting)
            connection.rollback()
        session = new_session(connection)
        yield session
        session.close()
        connection.invalidate()  # the setting ends with it


def test_a_finish_accepts_a_renewal_since_the_snapshot(
    reader: Session, other: Session, claimed: Claim[Email]
) -> None:
    reader.scalars(select(Email)).all()
    renew(other, claimed.fences)
    other.commit()

    complete(reader, claimed.fences)
    reader.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


@pytest.mark.parametrize("verb", [complete, fail, release, renew, cancel_claimed])
def test_a_claim_taken_away_since_the_snapshot_is_lost(
    reader: Session, other: Session, claimed: Claim[Email], verb: Callable[..., None]
) -> None:
    reader.scalars(select(Email)).all()
    release(other, claimed.fences)
    claim(other, Email, owner="thief", limit=3)
    other.commit()

    with pytest.raises(ClaimLost):
        verb(reader, claimed.fences)
    reader.commit()

    assert statuses(other) == [(recipient, "claimed", "thief") for recipient in "abc"]


def test_verbs_for_unclaimed_jobs_change_rows_changed_since_the_snapshot(
    reader: Session, other: Session
) -> None:
    add_tasks(other, "a")
    (task,) = reader.scalars(select(Task)).all()
    other.execute(update(Task).values(priority=3))
    other.commit()

    assert reprioritize(reader, task, 7) == [task]
    assert cancel(reader, task) == [task]
    assert retry(reader, task) == [task]
    reader.commit()

    assert [(job.status, job.priority) for job in other.scalars(select(Task))] == [("unclaimed", 7)]
