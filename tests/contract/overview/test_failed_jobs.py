"""failed_jobs(): the failed jobs, those that failed last first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, claim, fail
from sa_jobqueue.overview import (
    Count,
    FailedJob,
    Listed,
    count_failed,
    failed_jobs,
    list_jobs,
    why_incomplete,
)
from tests.contract.plans import fill

from .models import Crate, Hall, Parcel, Pigeon, Postcard, Stamp, boxes

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def failed(minutes: int, kind: str = "box") -> Parcel:
    when = LONG_AGO + timedelta(minutes=minutes)
    return Parcel(status="failed", kind=kind, owner_date=when, last_error=f"minute {minutes}")


def test_the_newest_come_first_and_only_those_of_the_queue(session: Session) -> None:
    session.add_all([failed(1), failed(3), failed(2), failed(4, "tube"), Parcel(), Parcel()])
    session.commit()

    found = failed_jobs(session, boxes, limit=2)

    assert [job.last_error for job in found] == ["minute 3", "minute 2"]


def test_a_failed_job_tells_its_story(session: Session) -> None:
    session.add(Parcel(attempts=4, max_attempts=5))
    session.commit()
    jobs = claim(session, Parcel, owner="w")
    fail(session, jobs, error=ValueError("no luck"))
    session.commit()

    (found,) = failed_jobs(session, Parcel, limit=10)

    assert (found.key, found.attempts) == ((jobs[0].id,), 5)
    assert found.last_error == "ValueError: no luck"
    assert found.owner_date is not None
    assert abs(found.owner_date - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_class_without_attempts_and_errors_says_none(session: Session) -> None:
    session.add(Postcard(id=7, status="lost", owner_date=LONG_AGO))
    session.commit()

    assert failed_jobs(session, Postcard, limit=1) == [FailedJob((7,), None, LONG_AGO, None)]


def test_a_row_that_tells_no_time_is_not_listed(session: Session) -> None:
    session.add_all([Parcel(status="failed"), failed(1)])
    session.commit()

    found = failed_jobs(session, Parcel, limit=5)

    assert [job.last_error for job in found] == ["minute 1"]


def test_pages_follow_each_other_also_where_jobs_failed_at_one_moment(session: Session) -> None:
    session.add_all([failed(0) for _ in range(5)])
    session.commit()

    first = failed_jobs(session, Parcel, limit=2)
    second = failed_jobs(session, Parcel, limit=2, before=first[-1])
    third = failed_jobs(session, Parcel, limit=2, before=second[-1])

    keys = [job.key for job in (*first, *second, *third)]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 5


def test_pages_follow_each_other_with_a_composite_key(session: Session) -> None:
    session.add_all(
        Stamp(sheet=n // 2, number=n % 2, status="failed", owner_date=LONG_AGO) for n in range(4)
    )
    session.commit()

    first = failed_jobs(session, Stamp, limit=2)
    second = failed_jobs(session, Stamp, limit=2, before=first[-1])

    assert [job.key for job in (*first, *second)] == [(1, 1), (1, 0), (0, 1), (0, 0)]


def test_pages_follow_each_other_with_a_key_of_types_of_ones_own(session: Session) -> None:
    session.add_all(
        Crate(hall=Hall(1 + n // 2), mark=n, status="failed", owner_date=LONG_AGO) for n in range(4)
    )
    session.commit()

    first = failed_jobs(session, Crate, limit=2)
    second = failed_jobs(session, Crate, limit=2, before=first[-1])

    keys = [job.key for job in (*first, *second)]
    assert keys == [(Hall.WEST, 3), (Hall.WEST, 2), (Hall.EAST, 1), (Hall.EAST, 0)]


@pytest.fixture
def flock(engine: Engine) -> None:
    """A failed pigeon before 10,000 that are done, and one behind them."""
    done = "INSERT INTO pigeon (id, wing, status, owner_date) SELECT 5, number, 'done'"
    fill(engine, f"{done}, '2020-01-01 00:00:00'", 10_000)
    with Session(engine) as session, session.begin():
        session.add_all(
            Pigeon(id=key, wing=1, status="failed", owner_date=LONG_AGO) for key in (4, 6)
        )


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.usefixtures("flock")
def test_without_an_index_they_are_looked_for_among_the_last_rows(session: Session) -> None:
    found = failed_jobs(session, Pigeon, limit=5)
    listed = list_jobs(session, Pigeon, Listed.FAILED, limit=5)
    why = why_incomplete(session, Pigeon)

    assert [job.key for job in found] == [(6, 1)]
    assert [job.key for job in listed] == [(6, 1)]
    assert why is not None
    assert "only the 10,000 rows with the largest keys" in why
    assert '"failed_index": True' in why


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.usefixtures("flock")
def test_a_list_that_must_be_complete_is_refused_without_an_index(session: Session) -> None:
    for wanted in (
        lambda: failed_jobs(session, Pigeon, limit=5, complete=True),
        lambda: count_failed(session, Pigeon, until=LONG_AGO),
    ):
        with pytest.raises(ArgumentError, match="failed_index"):
            wanted()


def test_of_a_small_table_they_are_all_listed_and_counted_without_an_index(
    session: Session,
) -> None:
    for number in range(3):
        moment = LONG_AGO + timedelta(minutes=number)
        session.add(Pigeon(id=number, wing=1, status="failed", owner_date=moment))
    session.commit()

    first = failed_jobs(session, Pigeon, limit=2, complete=True)
    second = failed_jobs(session, Pigeon, limit=2, complete=True, before=first[-1])

    assert [job.key for job in (*first, *second)] == [(2, 1), (1, 1), (0, 1)]
    assert count_failed(session, Pigeon, until=LONG_AGO) == Count(1)
    assert why_incomplete(session, Pigeon) is None


def test_a_limit_below_one_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        failed_jobs(session, Parcel, limit=0)


def test_they_are_listed_and_counted_until_a_moment(session: Session) -> None:
    session.add_all(failed(minute) for minute in range(5))
    session.commit()
    until = LONG_AGO + timedelta(minutes=2)

    first = failed_jobs(session, Parcel, limit=2, until=until)
    second = failed_jobs(session, Parcel, limit=2, until=until, before=first[-1])

    assert [job.last_error for job in (*first, *second)] == ["minute 2", "minute 1", "minute 0"]
    assert count_failed(session, Parcel, until=until) == Count(3)
