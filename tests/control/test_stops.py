"""request_stop(), as a worker reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import event, update
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, claim, fence_of, release, renew, utc_now
from sa_jobqueue.control import (
    ControlState,
    pause,
    read_control,
    register_worker,
    request_stop,
)
from sa_jobqueue.control.stops import key_text

from .conftest import TABLES, Letter


def claimed_letters(session: Session, owner: str = "w") -> Claim[Letter]:
    found = claim(session, Letter, owner=owner, limit=10)
    session.commit()
    return found


def state_of(session: Session, owner: str = "w") -> ControlState:
    found = read_control(session, [Letter], owner=owner, tables=TABLES)
    session.commit()
    return found


def test_the_worker_that_has_a_job_is_asked_to_stop_it(
    session: Session, new_session: Callable[[], Session]
) -> None:
    session.add_all([Letter(), Letter()])
    session.commit()
    first, second = claimed_letters(session)
    other = new_session()

    assert request_stop(other, other.get_one(Letter, first.id))
    assert request_stop(other, other.get_one(Letter, first.id))  # asked twice
    other.commit()

    state = state_of(session)
    assert state.asks_to_stop(fence_of(first))
    assert not state.asks_to_stop(fence_of(second))
    assert state_of(session, owner="another") == ControlState()


def test_a_request_is_forgotten_after_a_day(session: Session) -> None:
    session.add_all([Letter(), Letter()])
    session.commit()
    old, new = claimed_letters(session)
    for letter in (old, new):
        request_stop(session, letter)
    stops = TABLES.stops
    long_ago = utc_now(-(timedelta(days=2) // timedelta(microseconds=1)))
    is_old = stops.c.job_key == key_text((old.id,))
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


def test_a_claim_that_was_renewed_is_stopped_and_the_next_attempt_is_not(
    session: Session,
) -> None:
    session.add(Letter(id=7))
    session.commit()
    (letter,) = claimed_letters(session)
    renew(session, letter)
    request_stop(session, letter)
    renew(session, letter)
    session.commit()
    assert state_of(session).asks_to_stop(fence_of(letter))

    release(session, letter)
    session.commit()
    (again,) = claimed_letters(session)

    assert not state_of(session).asks_to_stop(fence_of(again))
    assert request_stop(session, again)
    assert state_of(session).asks_to_stop(fence_of(again))


def test_a_worker_asks_for_pauses_and_stops_in_one_statement(session: Session) -> None:
    session.add(Letter(id=7))
    session.commit()
    (letter,) = claimed_letters(session)
    request_stop(session, letter)
    pause(session, Letter)
    session.commit()
    engine, asked = session.get_bind(), []
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))

    state = state_of(session)

    assert len(asked) == 1
    assert state.is_paused(Letter)
    assert state.asks_to_stop(fence_of(letter))
