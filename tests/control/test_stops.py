"""request_stop(), as a worker reads it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Fence, JobQueue, claim, complete, fence_of, release, renew, utc_now
from sa_jobqueue.control import ControlState, read_control, register_worker, request_stop
from tests.support import statements_seen, until

from .conftest import TABLES, Letter, claimed_letters


def state_of(session: Session, owner: str | list[str] = "w") -> ControlState:
    found: ControlState = read_control(session, [Letter], owner=owner, tables=TABLES)
    session.commit()
    return found


def test_the_worker_that_has_a_job_is_asked_to_stop_it(
    session: Session, new_session: Callable[[], Session]
) -> None:
    first, second = claimed_letters(session, 2)
    other = new_session()

    assert request_stop(other, other.get_one(Letter, first.id))
    assert request_stop(other, other.get_one(Letter, first.id))  # asked twice
    other.commit()

    state = state_of(session)
    assert state.asks_to_stop(fence_of(first))
    assert not state.asks_to_stop(fence_of(second))
    assert state_of(session, owner="another") == ControlState()
    assert state_of(session, owner=["another", "w"]) == state


def test_a_request_is_forgotten_after_a_day(session: Session) -> None:
    old, new = claimed_letters(session, 2)
    for letter in (old, new):
        request_stop(session, letter)
    stops = TABLES.stops
    long_ago = utc_now(-(timedelta(days=2) // timedelta(microseconds=1)))
    is_old = stops.c.job_key == f"[{old.id}]"
    session.execute(update(stops).where(is_old).values(since=long_ago))
    session.commit()

    register_worker(session, "w", [Letter], tables=TABLES)
    session.commit()

    state = state_of(session)
    assert not state.asks_to_stop(fence_of(old))
    assert state.asks_to_stop(fence_of(new))


def test_a_job_that_nobody_has_is_not_stopped(session: Session) -> None:
    session.add(Letter(id=7))
    session.commit()

    assert not request_stop(session, session.get_one(Letter, 7))


@pytest.mark.parametrize("given", [lambda letter: letter, fence_of], ids=["entity", "fence"])
def test_a_job_in_a_status_that_its_class_does_not_declare_is_stopped_by_its_fence(
    session: Session, given: Callable[[Letter], Any]
) -> None:
    queue = JobQueue(Letter, ready="packed", during="sending")
    session.add(Letter(id=7, status="packed"))
    session.commit()
    (letter,) = queue.claim(session, owner="w")
    session.commit()

    assert request_stop(session, given(letter))
    session.commit()

    assert state_of(session).asks_to_stop(fence_of(letter))
    queue.complete(session, letter)
    assert not request_stop(session, given(letter))


def test_a_claim_that_was_renewed_is_stopped_and_the_next_attempt_is_not(
    session: Session,
) -> None:
    (letter,) = claimed_letters(session)
    renew(session, letter)
    request_stop(session, letter)
    renew(session, letter)
    session.commit()
    assert state_of(session).asks_to_stop(fence_of(letter))

    release(session, letter)
    (again,) = claim(session, Letter, owner="w")

    assert not state_of(session).asks_to_stop(fence_of(again))
    assert request_stop(session, again)
    assert state_of(session).asks_to_stop(fence_of(again))


@pytest.mark.only_on("sqlite")
def test_a_request_that_waited_for_the_end_of_its_job_says_that_nobody_has_it(
    engine: Engine, session: Session, new_session: Callable[[], Session]
) -> None:
    (letter,) = claimed_letters(session)
    complete(session, letter)  # as a transactional handler, it keeps the write lock of the file
    other = new_session()

    assert not asked_while(engine, other, fence_of(letter), session.commit)

    assert other.scalar(select(func.count()).select_from(TABLES.stops)) == 0


@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite has one writer at a time
def test_a_request_that_waited_for_another_says_whether_anybody_still_has_the_job(
    engine: Engine, session: Session, new_session: Callable[[], Session]
) -> None:
    first, second = claimed_letters(session, 2)
    before, other = new_session(), new_session()
    request_stop(before, first)
    request_stop(before, second)

    def end_one() -> None:
        complete(session, first)
        renew(session, second)
        session.commit()
        before.commit()

    assert not asked_while(engine, other, fence_of(first), end_one)
    assert request_stop(other, second)
    other.commit()
    assert state_of(session).asks_to_stop(fence_of(second))


def asked_while(engine: Engine, session: Session, fence: Fence, act: Callable[[], None]) -> bool:
    """Ask for a job, and act while the request waits for a lock; return its answer."""
    with (
        statements_seen(engine) as seen,
        ThreadPoolExecutor() as threads,
    ):
        asked = threads.submit(request_stop, session, fence)
        until(lambda: [each for each in seen if not each.startswith(("SELECT", "SET", "PRAGMA"))])
        act()
        return asked.result()
