"""Which errors a worker waits out, as drivers report them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, is_transient
from sa_jobqueue.dialects import is_read_only, is_shortage
from tests.contract.worker.faults import Faults, faults_in
from tests.contract.worker.support import own_database, transient, work
from tests.models import Email, add_emails
from tests.support import SERVERS


class DatabaseError(Exception):
    """An error of a driver, by the name that PEP 249 gives it."""


def with_state(state: str) -> DatabaseError:
    error = DatabaseError("told by psycopg")
    error.sqlstate = state  # type: ignore[attr-defined]  # as psycopg sets it
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (with_state("55P03"), True),  # lock_timeout
        (with_state("40001"), True),
        (with_state("23505"), False),
        (DatabaseError({"C": "40P01"}), True),  # pg8000
        (DatabaseError({"C": "42P01"}), False),
        (DatabaseError(3101, "rolled back by a plugin"), True),  # Group Replication
        (DatabaseError(1180, "Got error 149 - 'Lock deadlock' during COMMIT"), True),
        (DatabaseError(1180, "Got error 28 during COMMIT"), False),
        (DatabaseError(1146, "no such table"), False),
        (DatabaseError(1305, "PROCEDURE shop.pack does not exist"), False),
        (KeyError(1205), False),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_an_error_passes_whoever_raises_it(error: Exception, passes: bool, wrapped: bool) -> None:
    """An application's handle_error listener may raise the driver's own exception."""
    if wrapped and isinstance(error, DatabaseError):
        error = OperationalError("SELECT 1", {}, error)

    assert is_transient(error) is passes


@pytest.mark.only_on("mysql", "mariadb")
def test_a_deadlock_within_a_savepoint_passes(session: Session) -> None:
    """The server has rolled back the whole transaction, and knows the savepoint no more."""
    with pytest.raises(OperationalError) as raised, session.begin_nested():
        session.connection().exec_driver_sql("ROLLBACK")

    assert is_transient(raised.value)


def test_an_error_that_was_raised_from_one_that_passes_passes_too() -> None:
    cause = with_state("40001")
    error = RuntimeError("our own")
    error.__cause__ = cause

    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        with_state("25006"),
        DatabaseError(1290, "running with the --read-only option"),
        DatabaseError(1836, "Running in read-only mode"),
    ],
)
def test_a_server_that_takes_no_writes_is_waited_for(error: Exception) -> None:
    assert is_read_only(error)
    assert is_shortage(error)


def test_a_worker_whose_application_unwraps_errors_waits_out_a_deadlock(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_emails(session, "a", "b")

    def fail(connection: Any) -> None:
        cause = transient(db_alias)
        raise type("DatabaseError", (type(cause),), dict(vars(cause)))(*cause.args)

    handled: list[str] = []
    with faults_in(engine, Faults(6, fail)):
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient), owner="w")

    assert handled == ["a", "b"]
    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on(*SERVERS)
def test_a_worker_waits_for_a_server_that_is_read_only_for_a_moment(
    engine: Engine, session: Session, db_alias: str
) -> None:
    """It drops the connection, since the next one may lead to the new primary."""
    add_emails(session, "a", "b")
    read_only = with_state("25006") if db_alias == "postgresql" else DatabaseError(1836, "")

    def fail(connection: Any) -> None:
        raise OperationalError("UPDATE", {}, read_only)

    invalidated: list[object] = []
    event.listen(engine, "invalidate", lambda *args: invalidated.append(args))
    handled: list[str] = []
    with faults_in(engine, Faults(3, fail, times=2)):
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient), owner="w")

    assert handled == ["a", "b"]
    assert invalidated
    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on("mysql", "mariadb")
def test_a_worker_waits_for_a_server_that_ends_in_the_middle_of_a_login(
    engine: Engine, session: Session
) -> None:
    """PyMySQL calls it an InternalError; seen when a member of a group was killed."""
    add_emails(session, "a")
    # The first connection is made, the two after it are not.
    fails = iter([False, True, True])
    handled: list[str] = []

    def connect(*args: Any) -> None:
        if next(fails, False):
            raise engine.dialect.loaded_dbapi.InternalError("Packet sequence number wrong")

    engine.dispose()
    event.listen(engine, "do_connect", connect)
    try:
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))
    finally:
        event.remove(engine, "do_connect", connect)

    assert handled == ["a"]
    assert next(fails, None) is None


def test_a_worker_waits_for_a_pool_whose_connections_are_all_in_use(
    engine: Engine, session: Session, db_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a", "b")
    handled: list[str] = []

    with own_database(db_url, pool_size=2, max_overflow=0, pool_timeout=0.2) as small:

        def handler(email: Email) -> None:
            handled.append(email.recipient)
            for held in (small.connect(), small.connect()):
                threading.Timer(0.5, held.close).start()

        work(small, JobQueue(Email), handler, owner="w")

    assert handled == ["a", "b"]
    assert set(session.scalars(select(Email.status))) == {"done"}
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert 1 <= sum("QueuePool limit" in text for text in caplog.messages) <= len(handled)
