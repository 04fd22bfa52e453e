"""list_jobs(): each state's jobs in their order, page behind page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, claim, fail

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Count, Listed, ListedJob, count_failed, list_jobs, why_incomplete
from tests.contract.plans import fill

from .models import Crate, Hall, Parcel, Pigeon, Postcard, add, boxes, keys, pages

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_claimed_jobs_are_listed_by_the_age_of_their_claim(session: Session) -> None:
    add(session, *(Crate(hall=Hall(1 + n % 2), mark=n) for n in range(9)))
    for limit in (6, 3):
        claim(session, Crate, owner="w", limit=limit)
        session.commit()

    listed = pages(session, Crate, Listed.CLAIMED)

    jobs = [job for page in listed for job in page]
    dates = [job.owner_date for job in jobs if job.owner_date is not None]
    assert [len(page) for page in listed] == [4, 4, 1]
    assert len(set(keys(listed))) == len(dates) == 9
    assert dates == sorted(dates)
    assert {job.owner for job in jobs} == {"w"}


def test_jobs_that_wait_for_later_are_apart_from_the_due(session: Session) -> None:
    soon, late = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    add(session, Parcel(id=1), Parcel(id=2, run_at=late), Parcel(id=3, run_at=soon))
    add(session, Parcel(id=4, run_at=soon, priority=-1), Pigeon(id=1, wing=1))

    assert keys(pages(session, Parcel, Listed.DUE)) == [(1,)]
    assert keys(pages(session, Parcel, Listed.LATER, limit=1)) == [(4,), (3,), (2,)]
    assert pages(session, Pigeon, Listed.LATER) == []


# -- failed and cancelled jobs ------------------------------------------------


def failed(number: int, **values: Any) -> Parcel:
    when = LONG_AGO + number * MINUTE
    return Parcel(**{"id": number, "status": "failed", "owner_date": when} | values)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failed_and_cancelled_jobs_are_listed_the_newest_first(
    session: Session, status: str
) -> None:
    for number in range(1, 10):
        moment = LONG_AGO + number // 3 * MINUTE
        add(session, failed(number, owner_date=moment, status=status))
    add(session, failed(20, status=status, kind="letter"), failed(21, owner_date=None))

    assert keys(pages(session, boxes, Listed(status))) == [(key,) for key in range(9, 0, -1)]


def test_a_failed_job_tells_its_story(session: Session) -> None:
    add(session, Parcel(attempts=4, max_attempts=5), Postcard(id=7, status="lost"))
    session.get_one(Postcard, 7).owner_date = LONG_AGO
    jobs = claim(session, Parcel, owner="w")
    fail(session, jobs, error=ValueError("no luck"))
    session.commit()

    (found,) = list_jobs(session, Parcel, Listed.FAILED, limit=10)

    assert (found.key, found.attempts) == ((jobs[0].id,), 5)
    assert found.last_error == "ValueError: no luck"
    assert found.owner_date is not None
    assert abs(found.owner_date - datetime.now(UTC)) < 5 * MINUTE
    plain = ListedJob((7,), owner_date=LONG_AGO)
    assert list_jobs(session, Postcard, Listed.FAILED, limit=1) == [plain]


def test_they_are_listed_and_counted_until_a_moment(session: Session) -> None:
    add(session, *(failed(number) for number in range(1, 6)))
    until = LONG_AGO + 3 * MINUTE

    first = list_jobs(session, Parcel, Listed.FAILED, limit=2, until=until)
    second = list_jobs(session, Parcel, Listed.FAILED, limit=2, until=until, after=first[-1])

    assert keys([first, second]) == [(3,), (2,), (1,)]
    assert count_failed(session, Parcel, until=until) == Count(3)


@pytest.fixture
def flock(engine: Engine) -> None:
    """A failed pigeon before 10,000 that are done, and one behind them."""
    done = "INSERT INTO pigeon (id, wing, status, owner_date) SELECT 5, number, 'done'"
    fill(engine, f"{done}, '2020-01-01 00:00:00'", 10_000)
    with Session(engine) as session:
        rows = [Pigeon(id=key, wing=1, status="failed") for key in (4, 6)]
        for pigeon in rows:
            pigeon.owner_date = LONG_AGO
        add(session, *rows)


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.usefixtures("flock")
def test_without_an_index_they_are_looked_for_among_the_last_rows(session: Session) -> None:
    why = why_incomplete(session, Pigeon)

    assert keys([list_jobs(session, Pigeon, Listed.FAILED, limit=5)]) == [(6, 1)]
    assert why is not None
    assert "only the 10,000 rows with the largest keys" in why
    assert '"failed_index": True' in why
    for wanted in (
        lambda: list_jobs(session, Pigeon, Listed.FAILED, limit=5, complete=True),
        lambda: count_failed(session, Pigeon, until=LONG_AGO),
    ):
        with pytest.raises(ArgumentError, match="failed_index"):
            wanted()


def test_of_a_small_table_they_are_all_listed_and_counted_without_an_index(
    session: Session,
) -> None:
    for number in range(3):
        moment = LONG_AGO + number * MINUTE
        session.add(Pigeon(id=number, wing=1, status="failed", owner_date=moment))
    session.commit()

    listed = list_jobs(session, Pigeon, Listed.FAILED, limit=5, complete=True)

    assert [job.key for job in listed] == [(2, 1), (1, 1), (0, 1)]
    assert count_failed(session, Pigeon, until=LONG_AGO) == Count(1)
    assert why_incomplete(session, Pigeon) is None
