"""list_jobs(): each state's jobs in their order, page behind page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.overview import Listed, ListedJob, list_jobs, overview
from tests.contract.round_models import Device, Member, RoundBase
from tests.models import (
    Base,
    Document,
    Dog,
    Email,
    Message,
    Order,
    Pair,
    Render,
    Task,
    add_renders,
)
from tests.support import make_engine, with_empty_tables

from .models import Crate, Hall, Parcel, Pigeon, boxes

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def session(engine: Engine, db_url: URL) -> Iterator[Session]:
    """A session on the tables of the overview's models, and on those of all tests."""
    with_empty_tables(engine, Base.metadata)
    with_empty_tables(engine, RoundBase.metadata)
    other = make_engine(db_url)
    with Session(other) as session:
        yield session
    other.dispose()


def pages(session: Session, queue: Any, which: Listed, limit: int = 4) -> list[list[ListedJob]]:
    """Read page after page, until one is empty."""
    found: list[list[ListedJob]] = []
    while True:
        after = found[-1][-1].position if found else None
        page = list_jobs(session, queue, which, limit=limit, after=after)
        if not page:
            return found
        found.append(page)


def keys(found: list[list[ListedJob]]) -> list[Any]:
    return [job.key for page in found for job in page]


QUEUES: dict[str, tuple[Any, Any]] = {
    "plain": (Email, lambda n: {"recipient": f"{n}"}),
    "all mixins": (
        Task,
        lambda n: {"name": f"{n}", "priority": n % 3, "run_at": LONG_AGO + timedelta(hours=n // 4)},
    ),
    "other names": (Order, lambda n: {"job_priority": -(n % 2)}),
    "wide key": (
        Pair,
        lambda n: {"left": n % 2, "right": f"{n:02}", "priority": n % 3, "run_at": LONG_AGO},
    ),
    "types of one's own": (
        Crate,
        lambda n: {"hall": Hall(1 + n % 2), "mark": n, "run_at": LONG_AGO},
    ),
    "joined table": (Dog, lambda n: {"trick": f"{n}"}),
    "rounds": (
        Device,
        lambda n: {"round": 1 + n % 2, "priority": n % 3, "run_at": LONG_AGO},
    ),
    "own words": (Member, lambda n: {"club": f"{n % 2}", "number": n, "mailing": n % 3}),
}


@pytest.mark.parametrize("name", QUEUES)
def test_due_jobs_are_listed_as_they_will_be_claimed(session: Session, name: str) -> None:
    entity, values = QUEUES[name]
    session.add_all([entity(**values(number)) for number in range(13)])
    session.commit()
    queue: JobQueue[Any] = JobQueue(entity)

    listed = pages(session, queue, Listed.DUE)
    claimed = queue.claim(session, owner="w", limit=20)

    expected = [
        tuple(getattr(job, key.key) for key in queue.mapping.key_attributes) for job in claimed
    ]
    assert keys(listed) == expected
    assert [len(page) for page in listed] == [4, 4, 4, 1]


def test_due_jobs_of_one_round_are_listed_by_priority(session: Session) -> None:
    values = [{"round": 1 + n % 2, "priority": n % 3, "run_at": LONG_AGO} for n in range(20)]
    session.add_all([Device(**each) for each in values])
    session.commit()
    queue: JobQueue[Any] = JobQueue(Device, Device.round == 2)

    listed = pages(session, queue, Listed.DUE)
    claimed = queue.claim(session, owner="w", limit=20)

    assert keys(listed) == [(job.id,) for job in claimed]
    assert len(claimed) == 10


@pytest.mark.parametrize("name", QUEUES)
def test_claimed_jobs_are_listed_by_the_age_of_their_claims(session: Session, name: str) -> None:
    entity, values = QUEUES[name]
    session.add_all([entity(**values(number)) for number in range(9)])
    session.commit()
    queue: JobQueue[Any] = JobQueue(entity)
    for limit in (6, 3):
        queue.claim(session, owner="w", limit=limit)
        session.commit()

    listed = pages(session, queue, Listed.CLAIMED)

    dates = [job.owner_date for page in listed for job in page]
    assert len(set(keys(listed))) == len(dates) == 9
    assert dates == sorted(date for date in dates if date is not None)
    assert {job.owner for page in listed for job in page} == {"w"}


@pytest.mark.parametrize(
    ("queue", "values"),
    [
        (JobQueue(Message, Message.channel == "sms"), {"sequence": 7}),
        (JobQueue(Document), {"created": 7}),
        (JobQueue(Task, order_by=Task.name), {"name": "x"}),
    ],
)
def test_in_an_order_of_the_users_own_page_follows_page(
    session: Session, queue: JobQueue[Any], values: dict[str, Any]
) -> None:
    session.add_all([queue.entity(**values) for _ in range(10)])
    session.commit()

    listed = pages(session, queue, Listed.DUE)

    claimed = queue.claim(session, owner="w", limit=20)
    names = [key.key for key in queue.mapping.key_attributes]
    assert keys(listed) == [tuple(getattr(job, name) for name in names) for job in claimed]
    assert [len(page) for page in listed] == [4, 4, 2]


def test_later_jobs_in_an_order_of_the_users_own_have_pages_too(session: Session) -> None:
    late = datetime.now(UTC) + timedelta(hours=1)
    session.add_all(Parcel(id=key, kind=f"{-key}", run_at=late) for key in range(1, 6))
    session.add(Parcel(id=9))
    session.commit()

    listed = pages(session, JobQueue(Parcel, order_by=Parcel.kind), Listed.LATER, limit=2)

    assert keys(listed) == [(1,), (2,), (3,), (4,), (5,)]


def test_jobs_that_wait_for_later_are_apart_from_the_due(session: Session) -> None:
    soon, late = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    session.add_all([Parcel(id=1), Parcel(id=2, run_at=late), Parcel(id=3, run_at=soon)])
    session.add_all([Parcel(id=4, run_at=soon, priority=-1), Pigeon(id=1, wing=1)])
    session.commit()

    assert keys(pages(session, Parcel, Listed.DUE)) == [(1,)]
    assert keys(pages(session, Parcel, Listed.LATER, limit=1)) == [(4,), (3,), (2,)]
    assert pages(session, Pigeon, Listed.LATER) == []


@pytest.mark.parametrize(
    ("which", "status"), [(Listed.FAILED, "failed"), (Listed.CANCELLED, "cancelled")]
)
def test_failed_and_cancelled_jobs_are_listed_the_newest_first(
    session: Session, which: Listed, status: str
) -> None:
    for key in range(1, 10):
        moment = LONG_AGO + timedelta(minutes=key // 3)
        error = "x" * 1_000 if key == 9 else None
        session.add(Parcel(id=key, status=status, owner_date=moment, last_error=error))
    session.add(Parcel(id=20, status=status, owner_date=LONG_AGO, kind="letter"))
    session.commit()

    listed = pages(session, boxes, which)

    assert keys(listed) == [(key,) for key in range(9, 0, -1)]
    assert listed[0][0].last_error == "x" * 300


def test_a_page_has_at_least_one_job(session: Session) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        list_jobs(session, Parcel, Listed.DUE, limit=0)


def test_a_job_that_its_owner_has_moved_on_is_counted_and_listed_as_claimed(
    session: Session,
) -> None:
    add_renders(session, 1)
    queue = JobQueue(Render)
    queue.claim(session, owner="w")[0].status = "running"
    session.commit()

    (seen,) = overview(session, [queue])

    assert seen.claimed.number == 1
    (job,) = list_jobs(session, queue, Listed.CLAIMED, limit=4)
    assert job.owner == "w"
