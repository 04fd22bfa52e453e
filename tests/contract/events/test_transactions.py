"""Events wait for the commit that they tell of; who listens to what."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, claim, complete
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.events import Event, listen, listens_for, remove
from tests.contract.events.conftest import Hear, names
from tests.models import Account, Animal, Email, add_emails
from tests.support import Sessions, heard


@pytest.fixture(autouse=True)
def three_emails(session: Session) -> None:
    add_emails(session, *"abc")


def test_what_is_rolled_back_drops_its_events_alone(session: Session, hear: Hear) -> None:
    heard = hear(Email)

    claim(session, Email, owner="w")
    session.rollback()
    with session.begin_nested(), session.begin_nested():
        claimed = claim(session, Email, owner="w")
    around = session.begin_nested()
    with session.begin_nested():
        complete(session, claimed)
    around.rollback()
    assert heard == []
    session.commit()
    complete(session, claimed)
    session.close()

    assert names(heard) == ["after_claim"]


def test_a_listener_runs_outside_of_transactions(session: Session, engine: Engine) -> None:
    seen: list[tuple[bool, list[str]]] = []

    def look(event: Event) -> None:
        with Session(engine) as other:
            owners = [email.owner for email in other.query(Email) if email.owner]
        seen.append((session.in_transaction(), owners))

    listen(Email, "after_claim", look)
    claim(session, Email, owner="w")
    session.commit()
    remove(Email, "after_claim", look)

    assert seen == [(False, ["w"])]


def test_an_error_of_a_listener_is_logged_and_the_others_are_called(
    session: Session, hear: Hear, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise ValueError("no metrics today")

    listen(Email, "after_claim", broken)
    heard = hear(Email)
    with caplog.at_level(logging.ERROR, "sa_jobqueue.events"):
        claim(session, Email, owner="w")
        session.commit()
    remove(Email, "after_claim", broken)

    assert names(heard) == ["after_claim"]
    assert "no metrics today" in caplog.text


def test_under_autocommit_events_are_told_at_once(
    engine: Engine, new_session: Sessions, hear: Hear
) -> None:
    heard = hear(Email)
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))

    claimed = claim(session, Email, owner="w", limit=2)
    assert names(heard) == ["after_claim"]
    complete(session, claimed)

    assert names(heard) == ["after_claim", "after_finish"]


def test_a_session_inside_of_a_transaction_tells_at_its_own_commit(
    engine: Engine, new_session: Sessions, hear: Hear
) -> None:
    heard = hear(Email)

    with engine.connect() as connection:
        connection.begin()
        session = new_session(connection, join_transaction_mode="create_savepoint")
        claim(session, Email, owner="w")
        session.commit()
        told_at_commit = names(heard)
        connection.rollback()

    assert told_at_commit == ["after_claim"]


def test_a_connection_tells_after_its_commit_what_was_not_rolled_back(
    engine: Engine, hear: Hear
) -> None:
    heard, queue = hear(Email), JobQueue(Email)

    with engine.connect() as connection:
        queue.claim_rows(connection, owner="w")
        connection.rollback()
        with connection.begin_nested():
            claimed = queue.claim_rows(connection, owner="w", limit=2)
        savepoint = connection.begin_nested()
        queue.complete(connection, claimed)
        savepoint.rollback()
        queue.release(connection, claimed)
        assert heard == []
        connection.commit()
        assert names(heard) == ["after_claim", "after_release"]
        queue.claim_rows(connection, owner="w")

    assert len(heard) == 2


@pytest.mark.only_on("postgresql")
def test_a_commit_that_the_server_makes_a_rollback_tells_nothing(
    engine: Engine, session: Session, hear: Hear
) -> None:
    heard = hear(Email)

    claim(session, Email, owner="w")
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT 1 / 0"))
    session.commit()
    with engine.connect() as connection:
        JobQueue(Email).claim_rows(connection, owner="w")
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1 / 0"))
        connection.commit()

    assert heard == []


def test_a_commit_without_an_answer_tells_no_function(
    engine: Engine, session: Session, hear: Hear
) -> None:
    told = hear(Email)

    def lose_the_answer(connection: object) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    claim(session, Email, owner="w")
    with heard(engine, "commit", lose_the_answer), pytest.raises(OperationalError):
        session.commit()
    session.rollback()
    claim(session, Email, owner="w")
    session.commit()

    assert names(told) == ["after_claim"]


async def awaited(event: Event) -> None: ...


@pytest.mark.parametrize(
    ("target", "name", "function", "message"),
    [
        (Email, "after_lunch", print, "the events are after_enqueue, "),
        (Account, "after_claim", print, "add JobMixin"),
        ("email", "after_claim", print, "not a mapped class"),
        (Email, "after_claim", awaited, "plain function"),
        (Email, "after_claim", "print", "plain function"),
    ],
)
def test_a_mistake_is_refused(target: Any, name: str, function: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        listen(target, name, function)
    with pytest.raises(ArgumentError, match="does not listen"):
        remove(Email, "after_claim", function)


def test_a_decorated_function_listens_and_stays_a_function(session: Session) -> None:
    queue, heard = JobQueue(Email), list[str]()

    @listens_for(AsyncJobQueue(queue), "after_claim")
    def note(event: Event) -> None:
        heard.append(event.name)

    queue.claim(session, owner="w")
    session.commit()
    remove(queue, "after_claim", note)
    queue.claim(session, owner="w")
    session.commit()

    assert heard == ["after_claim"]


@pytest.mark.only_on("sqlite")  # once: a class is mapped once
def test_a_subclass_that_is_mapped_later_has_the_listeners_of_its_parent(
    session: Session, hear: Hear
) -> None:
    heard = hear(Animal, "after_claim")

    class Bird(Animal):
        __mapper_args__ = {"polymorphic_identity": "bird"}  # noqa: RUF012 - as users write it

    session.add(Bird())
    session.commit()
    claim(session, Bird, owner="w")
    session.commit()

    assert names(heard) == ["after_claim"]
