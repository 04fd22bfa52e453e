"""A claim goes on where the last one began, and finds what came to stand before it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, enqueue, release, retry
from tests.clock import Clock
from tests.models import Email, Pair, Task, add_emails, add_tasks

#: The strategies that a queue has of itself.
OWN = pytest.mark.strategies("auto")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def claimed(
    queue: JobQueue[Any], session: Session, limit: int = 2, rows: bool = False
) -> list[Any]:
    """Claim and commit; return the names of the jobs, or their keys."""
    claim = (queue.claim_rows if rows else queue.claim)(session, owner="w", limit=limit)
    session.commit()
    return [getattr(job, "name", None) or getattr(job, "recipient", None) for job in claim]


@pytest.fixture(params=["claim", "claim_rows"])
def rows(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "claim_rows")


def put_back(session: Session, *names: str) -> None:
    """Put jobs back as another program does."""
    for entity, name in ((Task, Task.name), (Email, Email.recipient)):
        session.execute(update(entity).where(name.in_(names)).values(status="unclaimed"))
    session.commit()


@pytest.mark.parametrize("limit", [1, 2])
def test_what_others_put_back_is_found_within_ten_seconds(
    session: Session, other: Session, clock: Clock, rows: bool, limit: int
) -> None:
    add_tasks(session, *"abcdefgh")
    queue = JobQueue(Task)
    first = [claimed(queue, session, limit, rows) for _ in range(2)]
    put_back(other, "a")

    behind = claimed(queue, session, limit, rows)
    clock.jump(11)

    assert [*first, behind] == [list("abcdef"[n * limit :][:limit]) for n in range(3)]
    assert claimed(queue, session, limit, rows)[0] == "a"


def test_a_claim_that_finds_too_few_jobs_finds_all(
    session: Session, other: Session, clock: Clock, rows: bool
) -> None:
    add_emails(session, *"abcdefgh")
    queue = JobQueue(Email)
    for _ in range(3):
        claimed(queue, session, 2, rows)
    put_back(other, "a", "c")

    assert claimed(queue, session, 5, rows) == ["a", "c", "g", "h"]
    assert claimed(queue, session, 5, rows) == []


@pytest.mark.parametrize("way", ["release", "retry", "reap", "enqueue", "reprioritize"])
def test_what_this_process_puts_before_the_place_is_found_at_once(
    session: Session, clock: Clock, way: str
) -> None:
    add_tasks(session, *"abcdefgh")
    queue = JobQueue(Task)
    first = queue.claim(session, owner="w", limit=2)
    session.commit()
    claimed(queue, session)

    match way:
        case "release":
            release(session, first)
        case "retry":
            queue.complete(session, first)
            retry(session, list(first))
        case "reap":
            queue.reap(session, lease=timedelta(microseconds=1))
        case "enqueue":
            enqueue(session, Task, [{"name": "a"}], priority=-1)
        case _:
            last = session.scalars(select(Task).where(Task.name == "h")).one()
            last.name = "a"
            queue.reprioritize(session, last, -1)
    session.commit()

    assert claimed(queue, session)[0] == "a"


def test_after_a_rollback_the_same_jobs_come_again(session: Session, clock: Clock) -> None:
    add_emails(session, *"abcdefghij")
    queue = JobQueue(Email)
    claimed(queue, session)
    for _ in range(2):
        queue.claim(session, owner="w", limit=2)
    session.rollback()

    assert claimed(queue, session) == ["c", "d"]


def test_a_better_priority_is_found_in_ten_seconds_and_its_level_is_followed(
    session: Session, other: Session, clock: Clock
) -> None:
    add_tasks(session, *"abcdefgh", priority=3)
    queue = JobQueue(Task)
    claimed(queue, session)
    add_tasks(other, *"urgent", priority=1)

    found = claimed(queue, session)
    clock.jump(11)

    assert found == ["c", "d"]
    assert [claimed(queue, session) for _ in range(4)] == [
        ["u", "r"],
        ["g", "e"],
        ["n", "t"],
        ["e", "f"],
    ]


def test_keys_of_two_columns_go_on_too(session: Session, other: Session, clock: Clock) -> None:
    moment = datetime.now(UTC)
    keys = [(left, right) for left in (1, 2) for right in "abc"]
    session.execute(
        insert(Pair), [{"left": left, "right": right, "run_at": moment} for left, right in keys]
    )
    session.commit()
    queue = JobQueue(Pair)
    found: list[Any] = []
    for _ in range(2):
        found += [(pair.left, pair.right) for pair in queue.claim(session, owner="w", limit=2)]
        session.commit()
    other.execute(update(Pair).where(Pair.left == 1, Pair.right == "a").values(status="unclaimed"))
    other.commit()
    found += [(pair.left, pair.right) for pair in queue.claim(session, owner="w", limit=2)]

    assert found == keys


@pytest.mark.parametrize(
    "queue",
    [
        JobQueue(Email, order_by=Email.recipient),
        JobQueue(Email, strict_order=True),
        JobQueue(Email, Email.recipient != "z"),
    ],
)
def test_other_orders_and_criteria_of_your_own_have_no_place(
    session: Session, other: Session, queue: JobQueue[Email]
) -> None:
    add_emails(session, *"abcdefgh")
    claimed(queue, session)
    claimed(queue, session)
    put_back(other, "a")

    assert claimed(queue, session)[0] == "a"


def test_turns_go_on_too(session: Session, other: Session, clock: Clock, rows: bool) -> None:
    add_emails(session, *"abcdefghij")
    queue = JobQueue(Email)
    done: Any = (queue.claim_rows if rows else queue.claim)(session, owner="w", limit=2)
    session.commit()
    found = [[job.recipient for job in done]]
    for _ in range(3):
        done = queue.turn(session, done, owner="w", limit=2, rows=rows)
        session.commit()
        found.append([job.recipient for job in done])
        if len(found) == 3:
            put_back(other, "a")
    last = queue.turn(session, done, owner="w", limit=9, rows=rows)

    assert found == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    assert [job.recipient for job in last] == ["a", "i", "j"]
