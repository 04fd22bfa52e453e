"""The values of jobs: JSON in the row of the schedule, and attributes of the job."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.dialects.clock import as_utc

from .models import SCHEDULES, Kind, Renamed, Typed

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
    assert as_utc(job.run_at) == datetime(2030, 1, 31, 5, tzinfo=UTC)
    assert SCHEDULES.all(session)[0].values == values


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"run_at": "2030-01-31T07:00:00"}, "has no time zone"),
        ({"run_at": "tomorrow"}, "Typed.run_at takes values of the type datetime.*ISO 8601"),
        ({"day": "2030-02-31"}, "Typed.day takes values of the type date"),
        ({"price": "cheap"}, "Typed.price takes values of the type Decimal"),
        ({"key": "1"}, "Typed.key takes values of the type UUID"),
        ({"title": 5}, "Typed.title takes values of the type str"),
        ({"count": 1.5}, "Typed.count takes values of the type int"),
        ({"share": "half"}, "Typed.share takes values of the type float"),
        ({"takes": 5}, "Typed.takes takes values of the type timedelta.*by a default"),
        ({"more": float("nan")}, "JSON"),
        ({"status": "done"}, "'status', which the queue writes"),
        ({"owner": "me"}, "'owner', which the queue writes"),
        ({"owner_date": "2030-01-31T07:00:00+00:00"}, "'owner_date', which the queue writes"),
    ],
)
def test_what_no_job_can_have_is_refused_when_it_is_declared(
    values: dict[str, Any], what: str
) -> None:
    with pytest.raises(ArgumentError, match=what):
        JobQueue(Typed).every("0 * * * *", name="t", values=values)


@pytest.mark.only_on("sqlite")
def test_a_renamed_status_is_refused_and_a_column_called_owner_is_not() -> None:
    queue = JobQueue(Renamed)

    queue.every("0 * * * *", name="fine", values={"owner": "Ann"})

    with pytest.raises(ArgumentError, match="'job_state', which the queue writes"):
        queue.every("0 * * * *", name="t", values={"job_state": "done"})
