"""Positions and priorities while others claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, cancel, claim, complete, position, positions, reprioritize
from tests.contract.positions.support import Ticket, claimed_in_order, key_of
from tests.contract.steps import unless_refused
from tests.models import Email, Task, add_emails, add_tasks
from tests.support import Sessions, impatient

HOUR = timedelta(hours=1)


# -- while others claim -------------------------------------------------


def test_position_does_not_wait_for_a_claim_that_is_not_committed(
    session: Session, other: Session
) -> None:
    jobs = add_tasks(session, "a", "b")
    claim(other, Task, owner="w")

    assert positions(session, jobs) == [1, 2]
    assert position(session, jobs[0]) == 1


@contextmanager
def before(engine: Engine, words: str, step: Callable[[], object]) -> Iterator[list[int]]:
    """Take a step of the other session before the first statement with these words."""
    taken: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if not taken and words in statement:
            taken.append(1)
            step()

    event.listen(engine, "before_cursor_execute", see)
    try:
        yield taken
    finally:
        event.remove(engine, "before_cursor_execute", see)


COUNTING, RANKING = "count(*)", "row_number()"


@pytest.mark.parametrize("entity", [Email, Task])
def test_the_other_jobs_keep_their_positions_when_the_last_is_claimed_meanwhile(
    session: Session, other: Session, engine: Engine, entity: type[Any]
) -> None:
    add = add_emails if entity is Email else add_tasks
    jobs: list[Any] = add(session, "a", "b", "c")

    def take_last() -> None:
        claim(other, entity, entity.id == jobs[2].id, owner="w")
        other.commit()

    with before(engine, RANKING, take_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_deleted_meanwhile_has_no_position(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_emails(session, "a", "b", "c")

    def delete_last() -> None:
        other.execute(delete(Email).where(Email.id == jobs[2].id))
        other.commit()

    with before(engine, RANKING, delete_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_postponed_meanwhile_has_no_position(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_tasks(session, "a", "b", "c")

    def put_off_last() -> None:
        later = update(Task).where(Task.id == jobs[2].id).values(run_at=datetime.now(UTC) + HOUR)
        other.execute(later)
        other.commit()

    with before(engine, RANKING, put_off_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_moved_behind_the_others_meanwhile_has_its_new_position(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_tasks(session, "a", "b", "c", "d")

    def move() -> None:
        reprioritize(other, other.get_one(Task, jobs[0].id), 5)
        other.commit()

    with before(engine, RANKING, move) as taken:
        found = positions(session, jobs[:3])

    assert (found, taken) == ([4, 1, 2], [1])


@pytest.mark.parametrize(("priority", "place"), [(5, 4), (-5, 1), (None, None)])
def test_a_job_that_changes_meanwhile_has_its_new_position(
    session: Session, other: Session, engine: Engine, priority: int | None, place: int | None
) -> None:
    first = add_tasks(session, "a", "b", "c", "d")[0]
    reprioritize(session, first, 2)
    session.commit()

    def change() -> None:
        job = other.get_one(Task, first.id)
        cancel(other, job) if priority is None else reprioritize(other, job, priority)
        other.commit()

    with before(engine, COUNTING, change) as taken:
        found = position(session, first)

    assert (found, taken) == (place, [1])


@pytest.mark.parametrize("words", [COUNTING, RANKING])
@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_value_that_becomes_empty_meanwhile_is_noticed(
    mine: Session, other: Session, engine: Engine, weight: float | None, words: str
) -> None:
    tickets = [Ticket(weight=one) for one in (None, 0.9, 0.1, 0.5 if weight is None else None)]
    mine.add_all(tickets)
    mine.commit()

    def change() -> None:
        other.execute(update(Ticket).where(Ticket.id == tickets[3].id).values(weight=weight))
        other.commit()

    asked = tickets if words == RANKING else tickets[3:]
    with before(engine, words, change) as taken:
        found = positions(mine, asked)

    order = claimed_in_order(mine, JobQueue(Ticket))
    assert taken == [1]
    assert found == [order.index(key_of(ticket)) + 1 for ticket in asked]


# -- reprioritize -------------------------------------------------------


@pytest.mark.strategies("skip_locked", "candidates", "compare_and_set", "update_then_select")
@pytest.mark.parametrize("between", ["SELECT", "UPDATE"])
def test_a_job_claimed_meanwhile_keeps_its_priority_and_is_left_out(
    engine: Engine, new_session: Sessions, strategy: str, between: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    a, b = add_tasks(session, "a", "b")
    stolen: list[int] = []

    def steal() -> None:
        stolen.extend(job.id for job in claim(other, Task, owner="w", strategy=strategy))
        other.commit()

    with before(engine, between, unless_refused(steal, other)) as taken:
        changed = reprioritize(session, [a, b], 7)
    session.commit()

    left = [job for job in (a, b) if job.id not in stolen]
    found = {job.id: job.priority for job in new_session().scalars(select(Task))}
    assert taken
    assert changed == left
    assert found == {job.id: 7 if job in left else 0 for job in (a, b)}


def test_reprioritize_waits_for_a_claim_and_then_changes_the_other_jobs(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    session = new_session()
    a, b = add_tasks(session, "a", "b")
    ids = [a.id, b.id]
    claimed = claim(session, Task, owner="w", strategy=strategy)
    assert [job.id for job in claimed] == ids[:1]
    changed: list[int] = []
    begun = Event()

    def change() -> None:
        with Session(engine) as theirs:
            jobs = [theirs.get_one(Task, number) for number in ids]
            begun.set()
            changed.extend(job.id for job in reprioritize(theirs, jobs, 7))
            theirs.commit()

    thread = Thread(target=change)
    thread.start()
    assert begun.wait(10)
    complete(session, claimed)
    session.commit()
    thread.join(30)

    assert changed == ids[1:]
    priorities = new_session().scalars(select(Task.priority).order_by(Task.id)).all()
    assert priorities == [0, 7]


def test_a_new_priority_changes_the_position_at_once(session: Session) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    (later,) = add_tasks(session, "later", run_at=datetime.now(UTC) + HOUR)

    changed = reprioritize(session, [c, later], -1)

    assert changed == [c, later]
    assert positions(session, [a, b, c, later]) == [2, 3, 1, None]
