"""The values of jobs: JSON in the row of the schedule, and attributes of the job."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from .models import SCHEDULES, Kind, Typed, in_utc

KEY = "12345678-1234-5678-1234-567812345678"

#: A column, a value of a schedule, and what is stored.
VALUES: list[tuple[str, Any, Any]] = [
    ("at", "2030-01-31T07:00:00", datetime(2030, 1, 31, 7)),
    ("day", "2030-01-31", date(2030, 1, 31)),
    ("hour", "07:30", time(7, 30)),
    ("price", "12.50", Decimal("12.50")),
    ("key", KEY, UUID(KEY)),
    ("kind", "BILL", Kind.BILL),
    ("more", {"a": 1}, {"a": 1}),
    ("count", 5, 5),
    ("share", 1, 1.0),
    ("urgent", True, True),
    ("takes", None, None),
]


def test_values_become_what_their_columns_take(session: Session) -> None:
    values = {"run_at": "2030-01-31T07:00:00+02:00", **{name: given for name, given, _ in VALUES}}
    SCHEDULES.add(session, "t", Typed, "0 * * * *", values=values)

    SCHEDULES.run_now(session, "t", Typed)
    session.commit()

    job = session.query(Typed).one()
    assert [getattr(job, name) for name, _, _ in VALUES] == [stored for _, _, stored in VALUES]
    assert in_utc(job.run_at) == datetime(2030, 1, 31, 5, tzinfo=UTC)
    assert SCHEDULES.all(session)[0].values == values
