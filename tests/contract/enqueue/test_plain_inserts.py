"""Jobs that are inserted by plain SQL, which knows nothing of the mixins' defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import claim, enqueue
from tests.models import Task, names

pytestmark = pytest.mark.strategies("auto")

PLAIN = text("INSERT INTO task (name) VALUES ('plain'), ('sql'), ('last')")


def test_a_plain_row_is_due_at_the_databases_time_and_behind_those_before_it(
    session: Session, strategy: str
) -> None:
    enqueue(session, Task, [{"name": "first"}])
    session.commit()
    session.execute(PLAIN)
    session.commit()

    tasks = claim(session, Task, owner="w", limit=4, strategy=strategy)

    assert names(tasks) == ["first", "plain", "sql", "last"]  # equal times: by the primary key
    assert all(abs(datetime.now(UTC) - task.run_at) < timedelta(minutes=1) for task in tasks)
    assert [task.max_attempts for task in tasks] == [20] * 4


def test_jobs_of_one_time_are_claimed_by_their_primary_keys(
    session: Session, strategy: str
) -> None:
    noon = datetime(2001, 2, 3, 12, tzinfo=UTC)
    keys = [7, 3, 9, 5]
    session.execute(insert(Task), [{"id": key, "name": str(key), "run_at": noon} for key in keys])

    assert [task.id for task in claim(session, Task, owner="w", limit=4, strategy=strategy)] == [
        3,
        5,
        7,
        9,
    ]


def test_a_time_in_another_zone_of_the_connection_is_still_utc(
    session: Session, db_alias: str
) -> None:
    zone = {"postgresql": "SET TIME ZONE '+09:00'", "sqlite": "SELECT 1"}
    session.execute(text(zone.get(db_alias, "SET time_zone = '+09:00'")))

    session.execute(PLAIN)

    due = session.scalars(select(Task.run_at)).first()
    assert due is not None
    assert abs(datetime.now(UTC) - due.replace(tzinfo=due.tzinfo or UTC)) < timedelta(minutes=1)
    session.connection().invalidate()  # the zone is that of the connection
