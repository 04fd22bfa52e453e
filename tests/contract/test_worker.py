"""The worker: claim, handle, finish; on every engine."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Engine,
    StaticPool,
    create_engine,
    event,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import (
    ArgumentError,
    Fence,
    JobQueue,
    Owner,
    OwnerState,
    UnsupportedDatabase,
    claim,
    owner_state,
    reap,
)
from sa_jobqueue.worker import Cancel, Retry, Worker
from sa_jobqueue.worker.heartbeat import Heartbeat
from tests.models import Account, Base, Email, Letter, Message, Task, add_emails, add_tasks
from tests.support import cut_connections, make_engine, statements_seen, until

SOON = timedelta(milliseconds=20)


def work(engine: Engine, queue: JobQueue, handler: Callable, **options: object) -> None:  # type: ignore[type-arg]  # any model
    """Drain a queue with a worker that does not idle for long."""
    if queue.mapping.has("run_at"):
        options = {"backoff": lambda attempts: SOON, **options}
    options = {"drain": True, "poll": SOON, **options}
    Worker(engine, queue, handler, **options).run()  # type: ignore[arg-type]  # forwarded


def states(session: Session) -> dict[str, tuple[str, int, str | None]]:
    found = session.scalars(select(Task))
    return {task.name: (task.status, task.attempts, task.last_error) for task in found}


def test_a_drained_queue_is_finished(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcde")
    handled: list[str] = []

    work(engine, JobQueue(Email), lambda email: handled.append(email.recipient), limit=2)

    assert handled == list("abcde")
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_jobs_are_deleted_where_the_model_or_the_worker_says_so(
    engine: Engine, session: Session
) -> None:
    session.add_all([Message(sequence=1), Message(sequence=2)])
    add_emails(session, "a")

    work(engine, JobQueue(Message), lambda message: None)
    work(engine, JobQueue(Email), lambda email: None, delete=True)

    assert session.scalars(select(Message)).all() == []
    assert session.scalars(select(Email)).all() == []


def test_a_handler_that_raises_fails_its_own_job_only(engine: Engine, session: Session) -> None:
    add_tasks(session, "a", "bad", "c", max_attempts=2)

    def handler(task: Task) -> None:
        if task.name == "bad":
            raise ValueError("no luck")

    work(engine, JobQueue(Task), handler, limit=3)

    assert states(session) == {
        "a": ("done", 1, None),
        "bad": ("failed", 2, "ValueError: no luck"),
        "c": ("done", 1, None),
    }


def test_a_handler_asks_for_another_try_or_cancels(engine: Engine, session: Session) -> None:
    add_tasks(session, "again", "never")

    def handler(task: Task) -> Retry | Cancel | None:
        if task.name == "never":
            return Cancel("no address")
        return Retry(in_=SOON, reason="busy") if task.attempts < 3 else None

    work(engine, JobQueue(Task), handler)

    assert states(session) == {
        "again": ("done", 3, "busy"),
        "never": ("cancelled", 1, "no address"),
    }


@pytest.mark.parametrize("outcome", ["nonsense", Retry()])
def test_an_outcome_that_cannot_be_is_a_failure_of_the_job(
    engine: Engine, session: Session, outcome: object
) -> None:
    add_emails(session, "a")  # Email has no RetryMixin

    work(engine, JobQueue(Email), lambda email: outcome)

    assert session.scalars(select(Email.status)).all() == ["failed"]


def test_a_drain_leaves_jobs_scheduled_for_later(engine: Engine, session: Session) -> None:
    add_tasks(session, "now")
    add_tasks(session, "later", run_at=datetime.now(UTC) + timedelta(hours=1))

    work(engine, JobQueue(Task), lambda task: None)

    assert {name: status for name, (status, _, _) in states(session).items()} == {
        "now": "done",
        "later": "unclaimed",
    }


def test_a_drain_waits_for_jobs_whose_retry_is_due_later(engine: Engine, session: Session) -> None:
    add_tasks(session, "a")
    tries: list[int] = []

    def handler(task: Task) -> Retry | None:
        tries.append(task.attempts)
        return Retry(in_=timedelta(seconds=0.5)) if task.attempts == 1 else None

    work(engine, JobQueue(Task), handler)

    assert tries == [1, 2]


def test_jobs_committed_after_an_empty_claim_are_found(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = threading.Event()
    handled = threading.Event()
    worker = Worker(engine, JobQueue(Email), lambda email: handled.set(), poll=SOON)
    pause = worker._pause

    def say_idle(idle_turns: int) -> None:
        idle.set()
        pause(idle_turns)

    monkeypatch.setattr(worker, "_pause", say_idle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert idle.wait(10)

    add_emails(session, "a")

    try:
        assert handled.wait(10)
    finally:
        worker.stop()
        thread.join(10)


def test_stopping_finishes_the_running_job_and_releases_the_rest(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "a", "b", "c")

    def handler(task: Task) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    worker = Worker(engine, JobQueue(Task), handler, limit=3)
    with worker.stopping_on_signals(signal.SIGTERM):
        worker.run()

    assert states(session) == {
        "a": ("done", 1, None),
        "b": ("unclaimed", 0, None),
        "c": ("unclaimed", 0, None),
    }


def test_a_lost_claim_does_not_stop_the_worker(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a", "b")

    def handler(email: Email) -> None:
        if email.recipient == "a":
            other.execute(update(Email).where(Email.id == email.id).values(owner="thief"))
            other.commit()

    told: list[str] = []
    work(
        engine,
        JobQueue(Email),
        handler,
        owner="w",
        limit=2,
        on_outcome=lambda email, outcome: told.append(email.recipient),
    )

    assert told == ["b"]
    found = session.execute(select(Email.status, Email.owner).order_by(Email.id))
    assert [tuple(row) for row in found] == [("claimed", "thief"), ("done", "w")]


def test_a_transaction_that_fails_is_run_again_and_no_job_twice(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_emails(session, "a", "b")
    handled: list[str] = []
    to_fail = [1]

    @event.listens_for(engine, "commit")
    def deadlock_once(connection: object) -> None:
        if handled and to_fail:
            to_fail.clear()
            raise OperationalError("COMMIT", {}, _transient(db_alias))

    try:
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))
    finally:
        event.remove(engine, "commit", deadlock_once)

    assert (handled, to_fail) == (["a", "b"], [])
    assert session.scalars(select(Email.status)).all() == ["done", "done"]


def _transient(alias: str) -> Exception:
    """A deadlock, or a busy database, as the engine's driver reports it."""
    if alias == "postgresql":
        error: Exception = Exception("deadlock detected")
        error.pgcode = "40P01"  # type: ignore[attr-defined]  # as psycopg2 sets it
    elif alias == "sqlite":
        error = Exception("database is locked")
        error.sqlite_errorcode = 5  # type: ignore[attr-defined]  # as sqlite3 sets it
    else:
        error = Exception(1213, "Deadlock found")
    return error


def test_a_batch_is_one_transaction_not_two(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcdef")
    commits: list[int] = []

    @event.listens_for(engine, "commit")
    def count(connection: object) -> None:
        commits.append(1)

    try:
        work(engine, JobQueue(Email), lambda email: None, limit=2)
    finally:
        event.remove(engine, "commit", count)

    # Three turns with a batch, one that finds nothing, one look whether all is done.
    assert len(commits) <= 5


def test_jobs_are_detached_and_loader_options_load_what_handlers_read(
    engine: Engine, session: Session
) -> None:
    session.add(Letter(copy_to=Account(name="x")))
    session.commit()
    seen: list[tuple[bool, str]] = []

    def handler(letter: Letter) -> None:
        assert letter.copy_to is not None
        seen.append((inspect(letter).detached, letter.copy_to.name))

    work(engine, JobQueue(Letter), handler, options=[selectinload(Letter.copy_to)])

    assert seen == [(True, "x")]


def test_callbacks_tell_claims_and_outcomes(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    claims: list[int] = []
    outcomes: list[tuple[str, object]] = []

    work(
        engine,
        JobQueue(Email),
        lambda email: None,
        limit=5,
        on_claim=lambda claimed: claims.append(len(claimed)),
        on_outcome=lambda email, outcome: outcomes.append((email.recipient, outcome)),
    )

    assert claims == [2]
    assert outcomes == [("a", None), ("b", None)]


def test_an_interval_makes_it_gentle(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    started = datetime.now(UTC)

    work(engine, JobQueue(Email), lambda email: None, interval=timedelta(seconds=0.2))

    assert datetime.now(UTC) - started >= timedelta(seconds=0.4)


@pytest.mark.parametrize("unmarked", ["held", "advisory"])
def test_a_worker_refuses_claims_that_are_not_written_down(engine: Engine, unmarked: str) -> None:
    with pytest.raises(ArgumentError, match=unmarked):
        Worker(engine, JobQueue(Email, strategy=unmarked), lambda email: None)


def test_an_idle_worker_leaves_no_transaction_open(engine: Engine, session: Session) -> None:
    with statements_seen(engine):
        work(engine, JobQueue(Email), lambda email: None)

    add_emails(session, "a")  # on SQLite an open write transaction would refuse this
    assert claim(session, Email, owner="w").first() is not None


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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


@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_process_leaves_nothing_claimed(
    engine: Engine, session: Session, exit_: type[BaseException]
) -> None:
    add_tasks(session, "a", "b", "c")

    def handler(task: Task) -> None:
        if task.name == "b":
            raise exit_

    with pytest.raises(exit_):
        work(engine, JobQueue(Task), handler, limit=3)

    assert states(session) == {
        "a": ("done", 1, None),
        "b": ("unclaimed", 0, None),
        "c": ("unclaimed", 0, None),
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_server_that_is_away_for_a_moment_is_waited_for(engine: Engine, session: Session) -> None:
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


# The owner


def owners(session: Session) -> list[str | None]:
    session.rollback()
    return list(session.scalars(select(Email.owner).order_by(Email.id)))


def test_a_worker_is_an_owner_for_as_long_as_it_runs(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    seen: list[OwnerState] = []

    def handler(email: Email) -> None:
        with Session(engine) as own:
            seen.append(owner_state(own, str(email.owner)))

    work(engine, JobQueue(Email), handler)

    (name,) = owners(session)
    assert str(name).split("~")[0].endswith(f"-{os.getpid()}")
    assert seen == [OwnerState.ALIVE]
    assert owner_state(session, str(name)) is OwnerState.DEAD


def test_an_owner_may_be_given(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b", "c")

    with Owner(engine, "mailer") as owner:
        for given in (owner, "plain", 7):
            worker = Worker(engine, JobQueue(Email), lambda email: worker.stop(), owner=given)  # noqa: B023 - run at once
            worker.run()
        assert owner_state(session, owner.name) is OwnerState.ALIVE
        assert owners(session) == [owner.name, "plain", "7"]


def test_where_no_owner_can_be_had_a_plain_name_does(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(owner: Owner) -> None:
        raise UnsupportedDatabase("a pooler stands in between")

    monkeypatch.setattr(Owner, "open", refuse)
    add_emails(session, "a")

    work(engine, JobQueue(Email), lambda email: None)

    (name,) = owners(session)
    assert "~" not in str(name)
    (warning,) = [record for record in caplog.records if record.name == "sa_jobqueue.worker"]
    assert warning.levelname == "WARNING"
    assert "a pooler stands in between" in warning.getMessage()


@contextmanager
def own_database(url: URL, **options: Any) -> Iterator[Engine]:
    """An engine with tables of its own, whose connections may be cut."""
    engine = make_engine(url, **options)
    Base.metadata.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()


def has_lost_its_lock(worker: Worker[Any]) -> bool:
    """Tell whether the loss was noticed, without having the owner take a new name."""
    owner = worker.owner
    assert isinstance(owner, Owner)
    assert owner._held is not None
    return owner._held.lock.lost


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_worker_whose_lock_was_lost_goes_on_under_a_new_name(
    fresh_database: URL, db_alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    with own_database(fresh_database) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
        engine.dispose()

        def handler(email: Email) -> None:
            if email.recipient == "a":
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))

        worker = Worker(engine, JobQueue(Email), handler, limit=2, drain=True, poll=SOON)
        worker.run()

        with Session(engine) as session:
            first, second, third = owners(session)
            assert first == second != third
            assert set(session.scalars(select(Email.status))) == {"done"}
        assert any("has lost its lock" in record.getMessage() for record in caplog.records)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_commit_in_doubt_is_looked_up_under_the_name_of_its_claim(
    fresh_database: URL, db_alias: str
) -> None:
    """The answer to a COMMIT is lost, and the owner's lock with it."""
    handled: list[str] = []
    to_break = [1]
    with own_database(fresh_database) as engine, pytest.MonkeyPatch.context() as patch:
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
        engine.dispose()
        commit = engine.dialect.do_commit

        def commit_and_break(connection: Any) -> None:
            commit(connection)
            if handled and to_break:
                to_break.clear()
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))
                error = OperationalError("COMMIT", {}, Exception("gone"))
                error.connection_invalidated = True
                raise error

        patch.setattr(engine.dialect, "do_commit", commit_and_break)
        queue = JobQueue(Email)
        worker = Worker(
            engine, queue, lambda email: handled.append(email.recipient), drain=True, poll=SOON
        )
        worker.run()

        assert handled == ["a", "b", "c"]
        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


# The heartbeat

SHORT_LEASE = timedelta(milliseconds=600)


def renewals(session: Session) -> int:
    """Count the claims whose time is not the first that this session saw."""
    session.rollback()
    found = session.execute(select(Email.id, Email.owner_date))
    now = {row.id: row.owner_date for row in found}
    first = session.info.setdefault("first", now)
    return sum(first[key] != date for key, date in now.items())


def test_a_long_handler_and_those_who_wait_behind_it_outlive_their_lease(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a", "b")
    began = time.monotonic()

    def handler(email: Email) -> None:
        if email.recipient == "a":
            until(lambda: renewals(session) == 2)
            session.info.clear()
            until(lambda: renewals(session) == 2)
            until(lambda: time.monotonic() > began + 2 * SHORT_LEASE.total_seconds())
            assert not reap(other, Email, lease=SHORT_LEASE)
            other.rollback()

    work(engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=2, owner="plain")

    assert owners(session) == ["plain", "plain"]
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_claims_are_renewed_where_the_handler_has_the_only_connection(
    fresh_database: URL,
) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    with own_database(fresh_database, **options) as engine, own_database(fresh_database) as beside:
        with Session(engine) as session:
            add_emails(session, "a", "b")

        def handler(email: Email) -> None:
            with Session(engine) as own, Session(beside) as session:
                assert own.get(Email, email.id) is not None
                own.commit()  # on SQLite a reader keeps writers from committing
                own.connection()
                until(lambda: renewals(session))

        work(engine, JobQueue(Email, lease=SHORT_LEASE), handler)

        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


def test_jobs_whose_claim_was_found_lost_are_not_handled(
    engine: Engine, session: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a", "b", "c")
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            stolen = update(Email).where(Email.recipient == "b").values(owner="thief")
            other.execute(stolen)
            other.commit()
            until(lambda: any("renew: 1 of 3" in text for text in caplog.messages))
            until(lambda: worker._heartbeat._lost)

    queue = JobQueue(Email, lease=SHORT_LEASE)
    worker = Worker(engine, queue, handler, limit=3, drain=True, poll=SOON)
    worker.run()

    assert handled == ["a", "c"]
    found = session.scalars(select(Email.status).order_by(Email.id))
    assert found.all() == ["done", "claimed", "done"]


def test_a_job_that_runs_too_long_is_not_renewed_and_taken_back(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a")
    taken: list[int] = []

    def take_back() -> bool:
        taken.append(len(reap(other, Email, max_runtime=SHORT_LEASE)))
        other.commit()
        return taken[-1] > 0

    def handler(email: Email) -> None:
        if not taken:
            until(take_back)

    work(engine, JobQueue(Email), handler, max_runtime=SHORT_LEASE, reap_every=None)

    assert taken[-1] == 1
    assert session.scalars(select(Email.status)).all() == ["done"]  # at the second try


def test_a_finish_waits_for_a_renewal_that_is_under_way(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_emails(session, "a")
    renewing, finishing = threading.Event(), threading.Event()
    rest = Heartbeat.rest

    def rest_and_say(heartbeat: Heartbeat) -> None:
        if renewing.is_set():
            finishing.set()
        rest(heartbeat)

    @event.listens_for(engine, "commit")
    def hold(connection: Any) -> None:
        if threading.current_thread().name == "sa_jobqueue heartbeat" and not renewing.is_set():
            renewing.set()
            finishing.wait(10)

    monkeypatch.setattr(Heartbeat, "rest", rest_and_say)
    queue = JobQueue(Email, lease=SHORT_LEASE)
    try:
        work(engine, queue, lambda email: until(renewing.is_set), delete=True)
    finally:
        event.remove(engine, "commit", hold)

    assert finishing.is_set()
    assert session.scalars(select(Email)).all() == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_many_renewals_and_finishes_lose_no_claim(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, *"abcdefghijklmnopqrstuvwxyz")
    queue = JobQueue(Email, lease=timedelta(milliseconds=6))

    def handler(email: Email) -> None:
        time.sleep(0.003)  # more than the pause between two renewals

    work(engine, queue, handler, limit=3)

    assert set(session.scalars(select(Email.status))) == {"done"}
    lost = [text for text in caplog.messages if "lost" in text]
    assert lost == []


def test_a_renewal_that_failed_is_tried_again_soon(
    engine: Engine, session: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, lease=timedelta(seconds=3))
    renew, times = queue.renew, []

    def fail_once(session: Session, fences: Sequence[Fence]) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise OperationalError("UPDATE", {}, _transient(db_alias))
        renew(session, fences)

    monkeypatch.setattr(queue, "renew", fail_once)
    work(engine, queue, lambda email: until(lambda: renewals(session)))

    assert times[1] - times[0] < 0.7  # a whole beat is a second


@pytest.mark.only_on("sqlite")
def test_a_database_in_memory_is_worked_on_by_one_thread() -> None:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, "a", "b")
    seen: list[str] = []

    def handler(email: Email) -> None:
        threading.Event().wait(0.05)
        seen.extend(thread.name for thread in threading.enumerate())

    work(engine, JobQueue(Email, lease=timedelta(milliseconds=20)), handler)

    assert "sa_jobqueue heartbeat" not in seen
    with Session(engine) as session:
        assert set(session.scalars(select(Email.status))) == {"done"}
    engine.dispose()


def test_the_thread_ends_with_the_run(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    seen: list[bool] = []

    def beating() -> bool:
        return "sa_jobqueue heartbeat" in {thread.name for thread in threading.enumerate()}

    work(engine, JobQueue(Email), lambda email: seen.append(beating()))

    assert seen == [True]
    assert not beating()


# Reaping


def test_a_drain_takes_back_the_claims_of_the_dead_and_leaves_those_of_the_living(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "dead", "living", "unknown")
    with Owner(engine) as living:
        with Owner(engine) as dying:
            claim(session, Email, owner=dying)
            session.commit()
        for owner in (living, "plain"):
            claim(session, Email, owner=owner)
            session.commit()
        handled: list[str] = []

        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))

    assert handled == ["dead"]


def test_a_busy_worker_takes_back_claims_between_its_turns(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "dead", "a", "b", "c")
    dying = Owner(engine)
    dying.open()
    claim(session, Email, owner=dying)
    session.commit()
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            dying.close()

    work(engine, JobQueue(Email), handler, reap_every=timedelta(microseconds=1))

    assert handled == ["a", "dead", "b", "c"]


def test_a_worker_that_is_told_to_takes_nothing_back(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        claim(session, Email, owner=owner)
        session.commit()

    work(engine, JobQueue(Email), lambda email: None, reap_every=None)

    assert session.scalars(select(Email.status)).all() == ["claimed"]


def test_a_reap_that_failed_is_tried_at_its_next_time(
    engine: Engine, session: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a", "b")
    with Owner(engine) as owner:
        claim(session, Email, owner=owner)
        session.commit()
    queue = JobQueue(Email)
    found, tries = queue.reap, []

    def fail_once(*args: Any, **how: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("SELECT", {}, _transient(db_alias))
        return found(*args, **how)

    monkeypatch.setattr(queue, "reap", fail_once)
    handled: list[str] = []

    work(
        engine,
        queue,
        lambda email: handled.append(email.recipient),
        reap_every=timedelta(microseconds=1),
    )

    assert handled == ["b", "a"]


@pytest.mark.parametrize("option", ["max_runtime", "reap_every"])
@pytest.mark.parametrize("duration", [timedelta(0), 5])
def test_durations_that_cannot_be_are_refused(
    engine: Engine, option: str, duration: object
) -> None:
    with pytest.raises(ArgumentError, match=option):
        Worker(engine, JobQueue(Email), lambda email: None, **{option: duration})  # type: ignore[arg-type]
