"""SQLite's only write lock is taken as late as possible: all other writers wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.models import Email, add_emails

pytestmark = pytest.mark.only_on("sqlite")


@pytest.fixture
def other(db_url: URL) -> Iterator[Engine]:
    """An engine that does not wait for other writers."""
    made = create_engine(db_url, connect_args={"timeout": 0})
    yield made
    made.dispose()


def is_free(other: Engine) -> bool:
    """Tell whether another connection could write now."""
    with other.connect() as connection:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError:
            return False
        connection.rollback()
        return True


@contextmanager
def locks_seen(engine: Engine, other: Engine) -> Iterator[list[tuple[str, bool]]]:
    """Note each statement by its verb, with whether others could write before it."""
    seen: list[tuple[str, bool]] = []

    def see(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append((statement.split()[0], is_free(other)))

    event.listen(engine, "before_cursor_execute", see)
    yield seen
    event.remove(engine, "before_cursor_execute", see)


QUEUE: JobQueue[Any] = JobQueue(Email)

#: A call with a claim of three jobs, and its statements: whether others could write before each.
CALLS: list[tuple[Callable[[Connection, Any], object], list[tuple[str, bool]]]] = [
    (lambda own, _: QUEUE.claim_rows(own, owner="w", limit=3), [("UPDATE", True)]),
    (
        lambda own, claimed: QUEUE.complete(own, claimed, delete=True),
        [("SAVEPOINT", True), ("DELETE", True)],
    ),
    (
        lambda own, claimed: QUEUE.complete(own, claimed),
        [("SAVEPOINT", True), ("UPDATE", True)],
    ),
    (
        lambda own, claimed: QUEUE.turn(own, claimed, owner="w", limit=3, delete=True, rows=True),
        [("SAVEPOINT", True), ("DELETE", True), ("UPDATE", False)],
    ),
]


@pytest.mark.parametrize(("call", "statements"), CALLS)
def test_the_lock_is_taken_with_the_last_statement_that_can(
    call: Callable[[Connection, Any], object],
    statements: list[tuple[str, bool]],
    engine: Engine,
    session: Session,
    other: Engine,
) -> None:
    add_emails(session, *"abcdef")
    claimed = QUEUE.claim_rows(session, owner="w", limit=3)
    session.commit()

    with locks_seen(engine, other) as seen, engine.connect() as connection:
        call(connection, claimed)
        connection.commit()

    assert seen == statements
