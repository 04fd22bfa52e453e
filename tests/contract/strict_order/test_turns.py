"""One claimer at a time claims from a queue in strict order, until its transaction ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    LockTimeout,
    UnsupportedDatabase,
    cancel,
    claim,
    complete,
    enqueue,
    is_transient,
    reprioritize,
)
from tests.contract.steps import before
from tests.models import Email, Task, add_emails, add_tasks, names, recipients
from tests.support import SERVERS, Sessions, heard, impatient, translating_errors

#: How long a test watches a claim that should wait; a claim that does not is back in milliseconds.
A_WHILE = 0.25
EMAILS = JobQueue(Email, strict_order=True)
TASKS = JobQueue(Task, strict_order=True)


class Later:
    """A claim that is made in a thread, and may have to wait there."""

    def __init__(self, engine: Engine, make: Callable[[], Any]) -> None:
        asked = threading.Event()
        event.listen(engine, "before_cursor_execute", lambda *_: asked.set(), once=True)
        self._claim = ThreadPoolExecutor(1).submit(make)
        assert asked.wait(30)

    @property
    def waits(self) -> bool:
        """Tell whether the claim still waits after a while."""
        return bool(wait([self._claim], A_WHILE).not_done)

    def result(self) -> Any:
        """Wait for the claim, for as long as a lock is waited for."""
        return self._claim.result(30)


# Until the transaction ends


@pytest.mark.parametrize(
    ("end", "expected"),
    [(Session.commit, ["c"]), (Session.rollback, ["a"]), (Session.close, ["a"])],
)
def test_the_next_claimer_waits_for_the_end_of_the_transaction(
    engine: Engine, session: Session, other: Session, end: Any, expected: Any, db_alias: str
) -> None:
    add_emails(session, "a", "b", "c", "d")
    claimed = EMAILS.claim(session, owner="first", limit=2)

    later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
    assert later.waits
    end(session)

    assert recipients(later.result()) == expected
    if end is Session.commit and db_alias != "sqlite":
        complete(session, claimed)  # while the second claimer's transaction is open
        session.commit()


@pytest.mark.parametrize("limit", [1, 2])
def test_after_its_wait_a_claim_sees_earlier_jobs_that_came_meanwhile(
    engine: Engine, new_session: Sessions, db_alias: str, limit: int
) -> None:
    session, other = new_session(), new_session()
    add_tasks(session, "a", "b", "c", priority=5)
    TASKS.claim(session, owner="first")
    later = Later(engine, lambda: TASKS.claim(other, owner="second", limit=limit))
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
    ("end", "expected"), [(Session.commit, ["b"]), (Session.rollback, ["a", "b"])]
)
def test_a_claim_waits_for_a_next_job_that_somebody_is_cancelling_and_locks_none_behind_it(
    engine: Engine, session: Session, other: Session, limit: int, end: Any, expected: list[str]
) -> None:
    first, _, third = add_emails(session, "a", "b", "c")
    cancel(session, [first])

    later = Later(engine, lambda: EMAILS.claim(other, owner="w", limit=limit))
    assert later.waits
    assert cancel(session, [third]) == [third]  # without waiting
    end(session)

    assert recipients(later.result()) == expected[:limit]


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 2])
def test_a_next_job_that_is_moved_back_between_look_and_lock_is_not_claimed(
    engine: Engine, session: Session, other: Session, limit: int
) -> None:
    first, *_ = add_tasks(session, "a", "b", "c")
    session.commit()
    moved: list[Any] = []

    def move_back(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "SKIP LOCKED" in statement and not moved:
            moved.extend(reprioritize(session, [first], 9))
            session.commit()

    with heard(engine, "before_cursor_execute", move_back):
        claimed = TASKS.claim(other, owner="w", limit=limit)

    assert moved
    assert names(claimed) == ["b", "c"][:limit]


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


@pytest.mark.only_on("mysql", "mariadb")
def test_a_claim_in_the_callers_transaction_waits_and_sees_committed_jobs(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b", "c")
    with Session(engine.execution_options(isolation_level="READ COMMITTED")) as other:
        assert other.scalar(select(func.count()).select_from(Email)) == 3
        claim(session, Email, owner="before")
        session.commit()
        EMAILS.claim(session, owner="first")

        later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
        assert later.waits
        session.rollback()

        assert recipients(later.result()) == ["b"]


# The end of the wait

#: Have a session wait for locks as short as its server allows.
BRIEFLY = {
    "postgresql": "SET lock_timeout = '200ms'",
    "mysql": "SET innodb_lock_wait_timeout = 1",
    "mariadb": "SET innodb_lock_wait_timeout = 1",
}


@pytest.mark.parametrize("errors", [nullcontext, translating_errors])
def test_the_wait_ends_with_a_lock_timeout(
    engine: Engine, session: Session, new_session: Sessions, db_alias: str, errors: Any
) -> None:
    """Whatever an application makes of errors."""
    impatient_engine = impatient(engine)
    other = new_session(impatient_engine)
    if db_alias in BRIEFLY:
        other.execute(text(BRIEFLY[db_alias]))
        other.commit()
    add_emails(session, "a", "b")
    EMAILS.claim(session, owner="first")

    said = r"claim Email.*Roll back and claim again"
    with errors(impatient_engine), pytest.raises(LockTimeout, match=said) as info:
        EMAILS.claim(other, owner="second")

    assert is_transient(info.value)
    other.rollback()
    session.commit()
    assert recipients(EMAILS.claim(other, owner="second")) == ["b"]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("setting", "shown"),
    [(None, "10s"), ("SET LOCAL lock_timeout = '7s'", "7s"), ("SET lock_timeout = 0", "0")],
)
def test_the_callers_lock_timeout_is_restored_after_the_claim(
    session: Session, setting: str | None, shown: str
) -> None:
    add_emails(session, "a")
    if setting is not None:
        session.execute(text(setting))

    EMAILS.claim(session, owner="w")

    assert session.scalar(text("SHOW lock_timeout")) == shown


# A queue like any other


def test_a_queue_keeps_its_own_order_and_criteria_for_plain_rows_too(session: Session) -> None:
    add_emails(session, "a1", "b", "a2", "a3")
    order = Email.recipient.desc()
    queue = JobQueue(Email, Email.recipient.like("a%"), order_by=order, strict_order=True)

    first = queue.claim(session, owner="w")
    rows = queue.turn(session, first, owner="w", rows=True)
    queue.complete(session, rows)
    session.commit()

    assert (recipients(first), recipients(rows)) == (["a3"], ["a2"])
    statuses = session.scalars(select(Email.status).order_by(Email.id)).all()
    assert statuses == ["unclaimed", "unclaimed", "done", "done"]


@pytest.mark.only_on("postgresql")
def test_the_turn_is_that_of_the_table_that_is_claimed_from(own_engine: Engine) -> None:
    elsewhere = own_engine.execution_options(schema_translate_map={None: 'Other "two"'})
    with elsewhere.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Other ""two"""')
        Email.metadata.tables["email"].create(connection)
    with Session(elsewhere) as one, Session(elsewhere) as two, Session(own_engine) as other:
        EMAILS.claim(one, owner="w")  # of nothing: it takes the turn too

        assert not EMAILS.claim(other, owner="w")  # without waiting
        later = Later(own_engine, lambda: EMAILS.claim(two, owner="w"))
        assert later.waits
        one.rollback()
        assert not later.result()


# What is refused


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("AUTOCOMMIT", r"AUTOCOMMIT.*use a session without"),
        ("REPEATABLE READ", "other than READ COMMITTED.*Begin the trans"),
        ("SERIALIZABLE", "other than READ COMMITTED.*Begin the trans"),
    ],
)
def test_what_could_not_keep_the_turn_is_refused_and_nothing_is_locked(
    engine: Engine,
    session: Session,
    db_alias: str,
    level: str,
    words: str,
) -> None:
    if level != "AUTOCOMMIT" and db_alias == "sqlite":
        return  # the write lock is the turn
    EMAILS.claim(session, owner="first")  # another claimer has the turn, so a claim would wait

    with Session(engine.execution_options(isolation_level=level)) as refused:
        if db_alias in ("mysql", "mariadb"):  # a claim that begins the transaction sets the level
            refused.scalar(select(func.count()).select_from(Email))
        with pytest.raises(UnsupportedDatabase, match=words):
            EMAILS.claim(refused, owner="w")


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
def test_a_strategy_without_strict_order_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"leave strategy='skip_locked' out.*strict_order"):
        JobQueue(Email, strict_order=True, strategy="skip_locked")
