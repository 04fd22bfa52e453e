"""SQLite's only write lock is taken as late as possible: all other writers wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.models import Email, add_emails
from tests.support import statements_seen

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


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "entities"])
def test_a_claim_takes_the_lock_with_its_only_statement(
    rows: bool, engine: Engine, session: Session, other: Engine
) -> None:
    queue = JobQueue(Email)
    add_emails(session, *"abc")
    session.commit()

    with locks_seen(engine, other) as seen, Session(engine) as own:
        claim: Any = queue.claim_rows if rows else queue.claim
        claim(own, owner="w", limit=3)
        own.commit()

    assert seen == [("UPDATE", True)]


@pytest.mark.parametrize(("delete", "verb"), [(True, "DELETE"), (False, "UPDATE")])
def test_a_finish_of_several_jobs_takes_the_lock_with_its_last_statement(
    delete: bool, verb: str, engine: Engine, session: Session, other: Engine
) -> None:
    queue = JobQueue(Email)
    add_emails(session, *"abc")
    claimed = queue.claim_rows(session, owner="w", limit=3)
    session.commit()

    with locks_seen(engine, other) as seen, engine.connect() as connection:
        queue.complete(connection, claimed, delete=delete)
        connection.commit()

    assert seen == [("SAVEPOINT", True), (verb, True)]


def test_a_turn_holds_the_lock_for_two_statements(
    engine: Engine, session: Session, other: Engine
) -> None:
    queue = JobQueue(Email)
    add_emails(session, *"abcdef")
    claimed = queue.claim_rows(session, owner="w", limit=3)
    session.commit()

    with locks_seen(engine, other) as seen, engine.connect() as connection:
        queue.turn(connection, claimed, owner="w", limit=3, delete=True, rows=True)
        connection.commit()

    assert seen == [("SAVEPOINT", True), ("DELETE", True), ("UPDATE", False)]


def test_batches_of_several_jobs_are_finished_by_one_text_which_the_driver_keeps_prepared(
    engine: Engine, session: Session
) -> None:
    queue = JobQueue(Email)
    add_emails(session, *"abcdefgh")
    session.commit()

    with statements_seen(engine) as seen, Session(engine) as own:
        for limit in (2, 3, 3):
            queue.complete(own, queue.claim_rows(own, owner="w", limit=limit), delete=True)
            own.commit()

    deletes = {statement for statement in seen if statement.startswith("DELETE")}
    assert len(deletes) == 1
