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

VALUES: list[tuple[str, Any, Any]] = [
    ("at", "2030-01-31T07:00:00", datetime(2030, 1, 31, 7)),
    ("day", "2030-01-31", date(2030, 1, 31)),
    ("hour", "07:30", time(7, 30)),
    ("price", "12.50", Decimal("12.50")),
    ("price", 3, Decimal(3)),
    ("price", 0.1, Decimal("0.1")),
    ("key", KEY, UUID(KEY)),
    ("kind", "BILL", Kind.BILL),
    ("more", {"a": 1}, {"a": 1}),
    ("count", 5, 5),
    ("share", 1, 1.0),
    ("share", 0.5, 0.5),
    ("urgent", True, True),
    ("urgent", 1, True),
    ("words", ["a", "b"], ["a", "b"]),
    ("day", None, None),
    ("count", None, None),
    ("takes", None, None),
]


@pytest.mark.parametrize(("name", "value", "stored"), VALUES)
def test_a_value_becomes_what_its_column_takes(
    session: Session, name: str, value: Any, stored: Any
) -> None:
    SCHEDULES.add(session, "t", Typed, "0 * * * *", values={name: value})

    SCHEDULES.run_now(session, "t", Typed)
    session.commit()

    assert getattr(session.query(Typed).one(), name) == stored
    assert SCHEDULES.all(session)[0].values == {name: value}


def test_a_run_at_of_the_values_replaces_the_tick(session: Session) -> None:
    SCHEDULES.add(session, "t", Typed, "0 * * * *", values={"run_at": "2030-01-31T07:00:00+02:00"})

    SCHEDULES.run_now(session, "t", Typed)
    session.commit()

    assert as_utc(session.query(Typed).one().run_at) == datetime(2030, 1, 31, 5, tzinfo=UTC)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"run_at": "2030-01-31T07:00:00"}, "has no time zone"),
        ({"run_at": "tomorrow"}, "Typed.run_at is a datetime, which is text as in '2030-"),
        ({"at": 5}, "Typed.at is a datetime"),
        ({"day": "2030-02-31"}, "Typed.day is a date"),
        ({"hour": "25:00"}, "Typed.hour is a time"),
        ({"price": "cheap"}, "Typed.price is a Decimal"),
        ({"price": True}, "Typed.price is a Decimal"),
        ({"key": "1"}, "Typed.key is a UUID"),
        ({"kind": "b"}, "Typed.kind is one of BILL, OFFER"),
        ({"title": ["a"]}, "Typed.title takes values of the type str"),
        ({"title": 5}, "Typed.title takes values of the type str"),
        ({"count": "abc"}, "Typed.count takes values of the type int, not 'abc'"),
        ({"count": 1.5}, "Typed.count takes values of the type int"),
        ({"count": True}, "Typed.count takes values of the type int"),
        ({"share": "half"}, "Typed.share takes values of the type float"),
        ({"share": True}, "Typed.share takes values of the type float"),
        ({"urgent": "yes"}, "Typed.urgent takes values of the type bool"),
        ({"urgent": 2}, "Typed.urgent takes values of the type bool"),
        ({"takes": 5}, "leave it out of values="),
        ({"image": "x"}, "leave it out of values="),
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
