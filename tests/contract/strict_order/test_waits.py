"""How long a claim in strict order waits for its turn, and where strict order is refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Queue
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    LockTimeout,
    UnsupportedDatabase,
    cancel,
    claim,
    is_transient,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.postgresql import database as postgresql_database
from sa_jobqueue.worker import Worker
from tests.contract.strict_order.support import EMAILS, Later, end_by_commit, end_by_rollback
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, statements_seen


@pytest.fixture
def impatient(engine: Engine, db_alias: str) -> Iterator[Session]:
    """A session that waits for locks for a second at most."""
    limits: dict[str, dict[str, Any]] = {
        "sqlite": {"timeout": 0.2},
        "postgresql": {"options": "-c lock_timeout=200ms"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout=1"},
        "mariadb": {"init_command": "SET innodb_lock_wait_timeout=1"},
    }
    impatient_engine = create_engine(engine.url, connect_args=limits[db_alias])
    with Session(impatient_engine) as session:
        yield session
    impatient_engine.dispose()


# The end of the wait


def test_the_wait_ends_with_a_lock_timeout(session: Session, impatient: Session) -> None:
    add_emails(session, "a", "b")
    EMAILS.claim(session, owner="first")

    with pytest.raises(LockTimeout, match=r"claim Email.*Roll back and claim again") as info:
        EMAILS.claim(impatient, owner="second")

    assert is_transient(info.value)
    impatient.rollback()
    session.commit()
    assert recipients(EMAILS.claim(impatient, owner="second")) == ["b"]


@pytest.mark.only_on(*SERVERS)
def test_the_wait_for_a_locked_job_ends_with_a_lock_timeout(
    session: Session, impatient: Session
) -> None:
    first, _ = add_emails(session, "a", "b")
    cancel(session, [first])

    with pytest.raises(LockTimeout):
        EMAILS.claim(impatient, owner="w", limit=2)


@pytest.mark.only_on("mysql", "mariadb")
def test_the_wait_in_a_callers_repeatable_read_ends_with_a_lock_timeout(
    session: Session, impatient: Session
) -> None:
    add_emails(session, "a", "b")
    EMAILS.claim(session, owner="first")
    impatient.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    impatient.scalars(select(Email.id)).all()

    with pytest.raises(LockTimeout) as info:
        EMAILS.claim(impatient, owner="second")

    assert isinstance(info.value.__cause__, DBAPIError)


def test_an_error_other_than_a_lock_timeout_is_raised_unchanged(session: Session) -> None:
    queue = JobQueue(Email, text("no_such_column = 1"), strict_order=True)  # type: ignore[arg-type]  # a typo

    with pytest.raises(DBAPIError, match="no_such_column"):
        queue.claim(session, owner="w")


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
        session.connection().exec_driver_sql(setting)

    EMAILS.claim(session, owner="w")

    assert session.scalar(text("SHOW lock_timeout")) == shown
    session.rollback()
    session.execute(text("SELECT set_config('lock_timeout', '10s', false)"))
    session.commit()


@pytest.mark.only_on("postgresql")
def test_a_wait_without_lock_timeout_has_a_limit(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_database, "LOCK_WAIT", timedelta(milliseconds=200))
    queue = JobQueue(Email, strict_order=True)
    queue.claim(session, owner="first")
    other.connection().exec_driver_sql("SET LOCAL lock_timeout = 0")

    with pytest.raises(LockTimeout):
        queue.claim(other, owner="second")


def test_a_worker_waits_for_its_turn_longer_than_for_a_lock(
    session: Session, impatient: Session
) -> None:
    add_emails(session, "a", "b")
    EMAILS.claim(session, owner="first")
    handled: list[str] = []
    bind = impatient.get_bind()
    assert isinstance(bind, Engine)
    worker = Worker(bind, EMAILS, lambda email: handled.append(email.recipient), drain=True)

    with log_lines("sa_jobqueue.worker") as logged:
        thread = threading.Thread(target=worker.run)
        thread.start()
        while "run again" not in logged.get(timeout=30):
            pass
    session.rollback()
    thread.join(30)

    assert handled == ["a", "b"]


@contextmanager
def log_lines(name: str) -> Iterator[Queue[str]]:
    """Collect the lines of a logger as they are logged."""
    lines: Queue[str] = Queue()
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# What is refused


def test_autocommit_is_refused(engine: Engine) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    with (
        Session(autocommit) as session,
        pytest.raises(UnsupportedDatabase, match=r"AUTOCOMMIT.*use a session without"),
    ):
        EMAILS.claim(session, owner="w")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_isolation_above_read_committed_is_refused_and_nothing_is_locked(
    engine: Engine, session: Session, level: str
) -> None:
    EMAILS.claim(session, owner="first")  # another claimer has the turn, so a claim would wait

    with (
        Session(engine.execution_options(isolation_level=level)) as refused,
        pytest.raises(UnsupportedDatabase, match=r"above READ COMMITTED.*Begin the trans"),
    ):
        EMAILS.claim(refused, owner="w")


def test_strategies_without_strict_order_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'skip_locked' keeps no strict order.*leave strat"):
        JobQueue(Email, strategy="skip_locked", strict_order=True)


def test_candidates_from_another_session_are_refused_in_strict_order(
    session: Session, other: Session
) -> None:
    with pytest.raises(ArgumentError, match="candidates_from= is for strategy='candidates'"):
        EMAILS.claim(session, owner="w", candidates_from=other)


# In a transaction of the caller's own level


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ UNCOMMITTED", "READ COMMITTED"])
def test_a_claim_in_the_callers_transaction_waits_and_sees_committed_jobs(
    engine: Engine, session: Session, level: str
) -> None:
    add_emails(session, "a", "b", "c")
    with Session(engine.execution_options(isolation_level=level)) as other:
        assert other.scalar(select(func.count()).select_from(Email)) == 3
        claim(session, Email, owner="before")
        session.commit()
        EMAILS.claim(session, owner="first")

        later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
        assert later.waits
        session.rollback()

        assert recipients(later.result()) == ["b"]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize(("end", "expected"), [(end_by_commit, ["b"]), (end_by_rollback, ["a"])])
def test_servers_without_skip_locked_wait_too(
    engine: Engine,
    session: Session,
    other: Session,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Session], None],
    expected: list[str],
) -> None:
    add_emails(session, "a", "b")
    monkeypatch.setattr(database_of(session.connection()), "skip_locked", False)
    queue = JobQueue(Email, strict_order=True)
    queue.claim(session, owner="first")

    with statements_seen(engine) as seen:
        later = Later(engine, lambda: queue.claim(other, owner="second"))
        assert later.waits
        end(session)
        assert recipients(later.result()) == expected

    assert not any("SKIP LOCKED" in statement for statement in seen)
