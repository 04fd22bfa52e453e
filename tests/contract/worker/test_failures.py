"""Lost connections, odd errors and interrupts lose no job."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Cancel, Retry, Worker
from tests.contract.owners.restricted_user import restricted_user
from tests.contract.worker.support import states, work
from tests.models import Base, Email, Task, add_emails, add_tasks
from tests.support import SERVERS, cut_connections, make_engine


@pytest.mark.only_on(*SERVERS)
def test_a_lost_connection_does_not_lose_what_was_handled(
    fresh_database: URL, db_alias: str
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, "a", "b")
    engine.dispose()
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            cut_connections(fresh_database, db_alias)

    work(engine, JobQueue(Email), handler)

    assert handled == ["a", "b"]
    with Session(engine) as session:
        assert session.scalars(select(Email.status)).all() == ["done", "done"]
    engine.dispose()


@pytest.mark.parametrize(
    "error",
    [ValueError("bad \x00 byte"), ValueError("bad \udc80"), KeyError(), Exception("ä" * 99)],
)
def test_no_error_text_keeps_a_failure_from_being_written(
    engine: Engine, session: Session, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sa_jobqueue")  # a surrogate cannot be reported
    add_tasks(session, "a", "b", max_attempts=1)

    def handler(task: Task) -> None:
        if task.name == "a":
            raise error

    work(engine, JobQueue(Task), handler, limit=2)

    assert {name: status for name, (status, _, _) in states(session).items()} == {
        "a": "failed",
        "b": "done",
    }


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "outcome",
    [Retry(in_=5), Retry(in_=timedelta.max), Cancel(reason=7)],  # type: ignore[arg-type]
)
def test_an_outcome_of_the_wrong_type_fails_its_job(
    engine: Engine, session: Session, outcome: object
) -> None:
    add_tasks(session, "a", max_attempts=1)

    work(engine, JobQueue(Task), lambda task: outcome)

    assert states(session)["a"][0] == "failed"


def test_an_exception_that_cannot_be_printed_fails_its_job(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "a", max_attempts=1)

    def handler(task: Task) -> None:
        raise Unprintable

    work(engine, JobQueue(Task), handler)

    assert states(session)["a"][:2] == ("failed", 1)


@pytest.mark.parametrize(
    "exit_", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]
)
def test_a_handler_that_ends_the_process_has_had_its_attempt(
    engine: Engine, session: Session, exit_: type[BaseException]
) -> None:
    add_tasks(session, "a", "b", "c", max_attempts=2)

    def handler(task: Task) -> None:
        if task.name == "b":
            raise exit_

    with pytest.raises(exit_):
        work(engine, JobQueue(Task), handler, limit=3)

    assert states(session) == {
        "a": ("done", 1, None),
        "b": ("unclaimed", 1, f"{exit_.__name__}: "),
        "c": ("unclaimed", 0, None),
    }
    session.rollback()
    with pytest.raises(exit_):
        work(engine, JobQueue(Task), handler)
    session.expire_all()
    assert states(session)["b"][:2] == ("failed", 2)


@pytest.mark.parametrize("ending", ["raises", "Retry"])
def test_a_handler_may_leave_its_job_expired(engine: Engine, session: Session, ending: str) -> None:
    """Its session commits, which expires the job, and is closed, which detaches the job."""
    add_tasks(session, "a", "b", max_attempts=2)

    def handler(task: Task) -> Retry | None:
        name = task.name
        with Session(engine) as own:
            own.add(task)
            own.commit()
        if name == "a" and ending == "raises":
            raise ValueError("no luck")
        return Retry(reason="ValueError: no luck") if name == "a" else None

    work(engine, JobQueue(Task), handler)

    assert states(session) == {
        "a": ("failed", 2, "ValueError: no luck"),
        "b": ("done", 1, None),
    }


def test_a_callback_that_raises_leaves_nothing_claimed(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")

    def tell(email: Email, outcome: object) -> None:
        raise OSError("no terminal")

    with pytest.raises(OSError, match="no terminal"):
        work(engine, JobQueue(Email), lambda email: None, on_outcome=tell)

    assert sorted(session.scalars(select(Email.status))) == ["done", "unclaimed"]


def test_a_commit_whose_answer_is_lost_orphans_no_claim(engine: Engine, session: Session) -> None:
    """The COMMIT of a finish and a claim succeeds, and the connection breaks."""
    add_emails(session, "a", "b", "c")
    handled: list[str] = []
    to_break = [1]
    commit = engine.dialect.do_commit

    def commit_and_break(connection: Any) -> None:
        commit(connection)
        if handled and to_break:
            to_break.clear()
            error = OperationalError("COMMIT", {}, Exception("gone"))
            error.connection_invalidated = True
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", commit_and_break)
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))

    assert handled == ["a", "b", "c"]
    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on(*SERVERS)
def test_a_worker_waits_for_a_server_that_is_away_for_a_moment(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    handled: list[str] = []
    refusals = [1, 2, 3]
    connect = engine.dialect.connect

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            refusals.pop()
            raise engine.dialect.loaded_dbapi.OperationalError(2003, "connection refused")
        return connect(*args, **kwargs)

    def handler(email: Email) -> None:
        if not handled:
            engine.dispose()
            patch.setattr(engine.dialect, "connect", refuse)
        handled.append(email.recipient)

    with pytest.MonkeyPatch.context() as patch:
        work(engine, JobQueue(Email), handler)

    assert (handled, refusals) == (["a", "b"], [])
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_a_worker_that_may_not_write_ends_at_once(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the worker waits for a privilege")

    monkeypatch.setattr("sa_jobqueue.worker.transactions.Pauses.pause", refuse)
    add_emails(session, "ann")

    with reading_only(engine) as theirs, pytest.raises(DBAPIError, match=r"denied|readonly"):
        Worker(theirs, JobQueue(Email), print, owner="w").run()


@contextmanager
def reading_only(engine: Engine) -> Iterator[Engine]:
    """An engine of the same database for a user who may only read."""
    if engine.dialect.name != "sqlite":
        with restricted_user(engine, "SELECT") as theirs:
            yield theirs
        return
    theirs = create_engine(f"sqlite:///file:{engine.url.database}?mode=ro&uri=true")
    yield theirs
    theirs.dispose()


def test_an_error_of_a_callback_at_the_end_is_not_told_as_a_refused_release(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a", "b")
    second = threading.Event()

    def handle(email: Email) -> None:
        if email.recipient == "b":
            assert second.wait(30)

    def tell(email: Email, outcome: object) -> None:
        second.set()
        raise LookupError("the callback failed")

    with pytest.raises(LookupError, match="the callback failed"):
        work(engine, JobQueue(Email), handle, concurrency=2, on_outcome=tell)

    assert set(session.scalars(select(Email.status))) == {"done"}
    assert "not released" not in caplog.text
