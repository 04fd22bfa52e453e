"""One claimer at a time claims from a queue in strict order, until its transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, cancel, claim, complete, enqueue, reprioritize
from tests.contract.steps import before
from tests.contract.strict_order.support import EMAILS, Later, end_by_commit, end_by_rollback
from tests.models import Email, Task, add_emails, add_tasks, names, recipients
from tests.support import SERVERS, Sessions


def end_by_close(session: Session) -> None:
    session.close()


@pytest.mark.parametrize(
    ("end", "expected"),
    [(end_by_commit, ["c"]), (end_by_rollback, ["a"]), (end_by_close, ["a"])],
)
def test_the_next_claimer_waits_for_the_end_of_the_transaction(
    engine: Engine,
    session: Session,
    other: Session,
    end: Callable[[Session], None],
    expected: list[str],
    db_alias: str,
) -> None:
    add_emails(session, "a", "b", "c", "d")
    claimed = EMAILS.claim(session, owner="first", limit=2)

    later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
    assert later.waits
    end(session)

    assert recipients(later.result()) == expected
    if end is end_by_commit and db_alias != "sqlite":
        complete(session, claimed)  # while the second claimer's transaction is open
        session.commit()


@pytest.mark.parametrize("limit", [1, 2])
def test_after_its_wait_a_claim_sees_earlier_jobs_that_came_meanwhile(
    engine: Engine, new_session: Sessions, db_alias: str, limit: int
) -> None:
    session, other = new_session(), new_session()
    queue = JobQueue(Task, strict_order=True)
    add_tasks(session, "a", "b", "c", priority=5)
    queue.claim(session, owner="first")
    later = Later(engine, lambda: queue.claim(other, owner="second", limit=limit))
    assert later.waits

    add = session if db_alias == "sqlite" else new_session()
    enqueue(add, Task, [{"name": "sooner", "priority": 1}])
    add.commit()
    session.commit()

    # Where row locks make the turn, it alone may be claimed before the first claim ends.
    claimed = names(later.result())
    assert claimed in (["sooner"], ["sooner", "b"][:limit])


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    ("end", "expected"), [(end_by_commit, ["b", "c"]), (end_by_rollback, ["a", "b"])]
)
def test_a_claim_waits_for_a_next_job_that_somebody_is_cancelling(
    engine: Engine,
    session: Session,
    other: Session,
    limit: int,
    end: Callable[[Session], None],
    expected: list[str],
) -> None:
    first, *_ = add_emails(session, "a", "b", "c")
    cancel(session, [first])

    later = Later(engine, lambda: EMAILS.claim(other, owner="w", limit=limit))
    assert later.waits
    end(session)

    assert recipients(later.result()) == expected[:limit]


@contextmanager
def before_a_lock(engine: Engine, step: Callable[[], None]) -> Iterator[list[int]]:
    """Take a step of the other session before the first row is locked."""
    taken: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if not taken and "SKIP LOCKED" in statement:
            taken.append(1)
            step()

    event.listen(engine, "before_cursor_execute", see)
    yield taken
    event.remove(engine, "before_cursor_execute", see)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 2])
def test_a_next_job_that_is_moved_back_between_look_and_lock_is_not_claimed(
    engine: Engine, session: Session, other: Session, limit: int
) -> None:
    queue = JobQueue(Task, strict_order=True)
    first, *_ = add_tasks(session, "a", "b", "c")
    session.commit()

    def move_back() -> None:
        reprioritize(session, [first], 9)
        session.commit()

    with before_a_lock(engine, move_back) as moved:
        claimed = queue.claim(other, owner="w", limit=limit)

    assert moved
    assert names(claimed) == ["b", "c"][:limit]


@pytest.mark.only_on(*SERVERS)
def test_a_claimer_that_waits_for_the_next_job_locks_no_job_behind_it(
    engine: Engine, session: Session, other: Session
) -> None:
    first, _, third = add_emails(session, "a", "b", "c")
    cancel(session, [first])
    later = Later(engine, lambda: EMAILS.claim(other, owner="w", limit=3))
    assert later.waits

    assert cancel(session, [third]) == [third]  # without waiting
    session.commit()

    assert recipients(later.result()) == ["b"]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("queue", [EMAILS, JobQueue(Email, strategy="candidates")])
def test_a_job_that_was_lost_to_another_claim_is_not_kept_locked(
    engine: Engine, new_session: Sessions, limit: int, queue: JobQueue[Email]
) -> None:
    session, other = new_session(), new_session()
    add_emails(session, "a")
    stolen: list[Email] = []

    def steal() -> None:
        stolen.extend(claim(other, Email, owner="thief"))
        other.commit()

    with before(engine, "SELECT email.id, email.recipient" if limit == 1 else "SELECT", steal):
        assert not queue.claim(session, owner="w", limit=limit)

    complete(other, stolen)  # while our transaction is open
    other.commit()


def test_a_claim_of_nothing_takes_the_turn_where_the_turn_is_a_lock(
    engine: Engine, session: Session, other: Session, db_alias: str
) -> None:
    assert not EMAILS.claim(session, owner="first")

    later = Later(engine, lambda: EMAILS.claim(other, owner="second"))

    assert later.waits is (db_alias in ("postgresql", "sqlite"))
    session.rollback()
    assert not later.result()
