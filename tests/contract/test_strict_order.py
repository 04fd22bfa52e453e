"""strict_order=True: exact claim order, and one claimer until its transaction ends."""

from __future__ import annotations

import json
import logging
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Engine,
    ForeignKey,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    joinedload,
    mapped_column,
    with_loader_criteria,
)

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
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
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.postgresql import database as postgresql_database
from sa_jobqueue.dialects.postgresql.turns import SPACE
from sa_jobqueue.worker import Worker
from tests.models import (
    Account,
    Base,
    Document,
    Dog,
    Email,
    Letter,
    Message,
    Pair,
    Task,
    add_emails,
    add_tasks,
    names,
    recipients,
)
from tests.support import make_engine, statements_seen

from .strict_claimers import WAITING, ClaimLog, LogBase, consume, produce
from .test_interleaved import before

Sessions = Callable[..., Session]
Restrict = Callable[[Session], None]

SERVERS = ("postgresql", "mysql", "mariadb")
CONSUMERS = 10

#: How long a claim that should wait is watched; one that does not is back in milliseconds.
A_WHILE = 0.25

EMAILS = JobQueue(Email, strict_order=True)


# Many processes


@pytest.fixture
def queue_engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine on a database of its own, with the tables."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    LogBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_claim_in_exactly_the_claim_order(
    queue_engine: Engine, limit: int, full: bool
) -> None:
    jobs = 2_000 if full else 100
    with Session(queue_engine) as session:
        enqueue(session, Task, [{"name": str(n), "priority": n * 7 % 5} for n in range(jobs)])
        session.commit()
        in_order = session.scalars(WAITING).all()

    run(queue_engine, [(consume, limit, seed, True) for seed in range(CONSUMERS)])

    with Session(queue_engine) as session:
        assert session.scalars(select(ClaimLog.job).order_by(ClaimLog.id)).all() == in_order
        assert len(set(session.scalars(select(ClaimLog.process)))) > 1


@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", [3, pytest.param(1, marks=pytest.mark.only_full)])
def test_no_job_is_claimed_while_a_sooner_one_is_left_that_was_there_before_the_claim(
    queue_engine: Engine, limit: int, full: bool
) -> None:
    jobs = 500 if full else 60
    with Session(queue_engine) as session:
        enqueue(session, Task, [{"name": str(n)} for n in range(jobs)])
        session.commit()

    run(
        queue_engine,
        [(consume, limit, seed, True) for seed in range(CONSUMERS)]
        + [(produce, jobs, seed) for seed in range(2)],
    )

    with Session(queue_engine) as session:
        claims(session, JobQueue(Task, strict_order=True))  # what came after the last look
        assert not overtaken(session)


def claims(session: Session, queue: JobQueue[Task]) -> None:
    """Claim what is left."""
    while queue.claim(session, owner="last"):
        session.commit()


def overtaken(session: Session) -> list[tuple[int, int]]:
    """List the jobs that were left for a later one, each with that one."""
    rank = {
        job: place
        for place, job in enumerate(
            session.scalars(select(Task.id).order_by(Task.priority, Task.run_at, Task.id))
        )
    }
    lines = session.scalars(select(ClaimLog).order_by(ClaimLog.id)).all()
    taken: set[int] = set()
    found = []
    for line in lines:
        taken.add(line.job)
        sooner = [job for job in json.loads(line.waiting) if rank[job] < rank[line.job]]
        found += [(job, line.job) for job in sooner if job not in taken]
    return found


def run(engine: Engine, jobs: list[tuple[Any, ...]]) -> None:
    """Run a process for each function with its arguments, all at once; fail if one fails."""
    context = multiprocessing.get_context("spawn")
    all_there = context.Barrier(len(jobs))
    url = engine.url.render_as_string(hide_password=False)
    processes = [
        context.Process(target=work, args=(url, *given, all_there), daemon=True)
        for work, *given in jobs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * len(processes)


# Two sessions, stepped


class Later:
    """A claim that is made in a thread, and may have to wait there."""

    def __init__(self, engine: Engine, make: Callable[[], Any]) -> None:
        self._asked = threading.Event()
        self._done = threading.Event()
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, args=(engine, make), daemon=True)
        self._thread.start()
        assert self._asked.wait(30)

    def _run(self, engine: Engine, make: Callable[[], Any]) -> None:
        def ask(*args: Any) -> None:
            if threading.current_thread() is self._thread:
                self._asked.set()

        event.listen(engine, "before_cursor_execute", ask)
        try:
            self._result = make()
        except Exception as error:  # for the test's own thread to see
            self._result = error
        finally:
            event.remove(engine, "before_cursor_execute", ask)
            self._done.set()

    @property
    def waits(self) -> bool:
        """Whether it is still not there after a while."""
        return not self._done.wait(A_WHILE)

    def result(self) -> Any:
        """Wait for the claim, for as long as a lock is waited for."""
        assert self._done.wait(30)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def end_by_commit(session: Session) -> None:
    session.commit()


def end_by_rollback(session: Session) -> None:
    session.rollback()


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
) -> None:
    add_emails(session, "a", "b", "c", "d")
    EMAILS.claim(session, owner="first", limit=2)

    later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
    assert later.waits
    end(session)

    assert recipients(later.result()) == expected


@pytest.mark.parametrize("limit", [1, 2])
def test_after_the_wait_sooner_jobs_that_came_meanwhile_are_seen(
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

    # Where rows are the locks, it may be claimed before the first claim's end: alone.
    claimed = names(later.result())
    assert claimed in (["sooner"], ["sooner", "b"][:limit])


@pytest.mark.only_on(*SERVERS)
def test_a_sooner_job_that_comes_while_the_priorities_are_read_is_seen(
    engine: Engine, new_session: Sessions
) -> None:
    session, producer = new_session(), new_session()
    add_tasks(session, "later", priority=5)
    queue = JobQueue(Task, strict_order=True)

    with before(engine, "SELECT task.id", lambda: add_tasks(producer, "sooner", priority=1)):
        claimed = queue.claim(session, owner="w")

    assert names(claimed) == ["sooner"]


class CommitBase(DeclarativeBase):
    pass


class Parent(CommitBase):
    __tablename__ = "commit_parent"
    id: Mapped[int] = mapped_column(primary_key=True)


class Child(CommitBase):
    """A row without its parent fails at COMMIT only."""

    __tablename__ = "commit_child"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[int] = mapped_column(
        ForeignKey("commit_parent.id", deferrable=True, initially="DEFERRED")
    )


@pytest.mark.only_on("postgresql", "sqlite")
def test_the_next_claimer_waits_for_the_end_of_a_transaction_that_fails_at_commit(
    queue_engine: Engine, db_alias: str
) -> None:
    CommitBase.metadata.create_all(queue_engine)
    with Session(queue_engine) as session, Session(queue_engine) as other:
        add_emails(session, "a", "b")
        if db_alias == "sqlite":
            session.connection().exec_driver_sql("PRAGMA foreign_keys = ON")
        EMAILS.claim(session, owner="first")
        session.execute(insert(Child), {"parent_id": 1})

        later = Later(queue_engine, lambda: EMAILS.claim(other, owner="second"))
        assert later.waits
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()

        assert recipients(later.result()) == ["a"]


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    ("end", "expected"), [(end_by_commit, ["b", "c"]), (end_by_rollback, ["a", "b"])]
)
def test_a_next_job_that_somebody_is_cancelling_is_waited_for(
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
def test_a_next_job_that_is_moved_back_meanwhile_is_not_claimed(
    engine: Engine, session: Session, other: Session
) -> None:
    queue = JobQueue(Task, strict_order=True)
    first, *_ = add_tasks(session, "a", "b")
    reprioritize(session, [first], 9)

    later = Later(engine, lambda: queue.claim(other, owner="w"))
    assert later.waits
    session.commit()

    assert names(later.result()) == ["b"]


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 2])
def test_nor_one_that_is_moved_back_between_the_look_and_the_lock(
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
def test_a_claim_ends_before_a_job_that_somebody_has_locked(
    engine: Engine, new_session: Sessions
) -> None:
    session, other = new_session(), new_session()
    _, second, _ = add_emails(session, "a", "b", "c")
    cancel(session, [second])

    claimed = EMAILS.claim(other, owner="w", limit=3)
    other.commit()
    session.rollback()

    assert recipients(claimed) == ["a"]
    assert recipients(EMAILS.claim(other, owner="w", limit=3)) == ["b", "c"]


@pytest.mark.only_on(*SERVERS)
def test_whoever_waited_does_not_stand_in_the_way_of_a_finish(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a", "b")
    claimed = EMAILS.claim(session, owner="first")
    later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
    assert later.waits
    session.commit()
    assert recipients(later.result()) == ["b"]

    complete(session, claimed)  # while the second one's transaction is open
    session.commit()


@pytest.mark.only_on(*SERVERS)
def test_whoever_waits_for_the_next_job_holds_none_of_those_behind_it(
    engine: Engine, session: Session, other: Session
) -> None:
    first, _, third = add_emails(session, "a", "b", "c")
    cancel(session, [first])
    later = Later(engine, lambda: EMAILS.claim(other, owner="w", limit=3))
    assert later.waits

    assert cancel(session, [third]) == [third]  # at once
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


# The end of the wait


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
def test_in_the_callers_repeatable_read_too_the_wait_ends_with_a_lock_timeout(
    session: Session, impatient: Session
) -> None:
    add_emails(session, "a", "b")
    EMAILS.claim(session, owner="first")
    impatient.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    impatient.scalars(select(Email.id)).all()

    with pytest.raises(LockTimeout) as info:
        EMAILS.claim(impatient, owner="second")

    assert isinstance(info.value.__cause__, DBAPIError)


def test_an_error_that_is_not_the_end_of_a_wait_comes_out_as_it_is(session: Session) -> None:
    queue = JobQueue(Email, text("no_such_column = 1"), strict_order=True)  # type: ignore[arg-type]  # as a typo

    with pytest.raises(DBAPIError, match="no_such_column"):
        queue.claim(session, owner="w")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("setting", "shown"),
    [(None, "10s"), ("SET LOCAL lock_timeout = '7s'", "7s"), ("SET lock_timeout = 0", "0")],
)
def test_the_callers_own_lock_timeout_is_back_after_the_claim(
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
def test_without_a_lock_timeout_the_wait_has_a_limit_all_the_same(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_database, "LOCK_WAIT", timedelta(milliseconds=200))
    queue = JobQueue(Email, strict_order=True)
    queue.claim(session, owner="first")
    other.connection().exec_driver_sql("SET LOCAL lock_timeout = 0")

    with pytest.raises(LockTimeout):
        queue.claim(other, owner="second")


def test_a_worker_waits_for_its_turn_longer_than_a_lock_is_waited_for(
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
    """Hand out what a logger says, as soon as it does."""
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


# What cannot be had


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
    EMAILS.claim(session, owner="first")  # the turn is taken: it would have to wait

    with (
        Session(engine.execution_options(isolation_level=level)) as refused,
        pytest.raises(UnsupportedDatabase, match=r"above READ COMMITTED.*begin the trans"),
    ):
        EMAILS.claim(refused, owner="w")


def test_another_strategy_keeps_no_strict_order() -> None:
    with pytest.raises(ArgumentError, match=r"'skip_locked' keeps no strict order.*leave strat"):
        JobQueue(Email, strategy="skip_locked", strict_order=True)


def test_candidates_from_elsewhere_have_no_strict_order(session: Session, other: Session) -> None:
    with pytest.raises(ArgumentError, match="candidates_from= is for strategy='candidates'"):
        EMAILS.claim(session, owner="w", candidates_from=other)


# In a transaction of the caller's own level


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ UNCOMMITTED", "READ COMMITTED"])
def test_in_the_callers_own_transaction_it_waits_and_sees_what_was_committed(
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


# It is a queue like any other


def add_pairs(session: Session) -> list[Any]:
    enqueue(session, Pair, [{"left": n, "right": "x", "priority": -n} for n in (1, 3, 2)])
    return [(3, "x"), (2, "x"), (1, "x")]


def add_documents(session: Session) -> list[Any]:
    enqueue(session, Document, [{"created": n} for n in (3, 1, 2)])
    return list(session.scalars(select(Document.id).order_by(Document.created)))


def add_dogs(session: Session) -> list[Any]:
    session.add_all([Dog(trick=trick) for trick in "abc"])
    session.flush()
    return list(session.scalars(select(Dog.id).order_by(Dog.id)))


def add_messages(session: Session) -> list[Any]:
    enqueue(session, Message, [{"sequence": n} for n in (2, 3, 1)])
    return list(session.scalars(select(Message.id).order_by(Message.sequence.desc())))


@pytest.mark.parametrize(
    ("entity", "add"),
    [(Pair, add_pairs), (Document, add_documents), (Dog, add_dogs), (Message, add_messages)],
)
def test_every_kind_of_class_is_claimed_in_its_order(
    session: Session, entity: type[Any], add: Callable[[Session], list[Any]]
) -> None:
    in_order = add(session)
    session.commit()
    queue = JobQueue(entity, strict_order=True)

    claimed = [*queue.claim(session, owner="w"), *queue.claim(session, owner="w", limit=5)]

    keys = [tuple(job.__mapper__.primary_key_from_instance(job)) for job in claimed]
    assert [key if len(key) > 1 else key[0] for key in keys] == in_order
    queue.complete(session, claimed)
    session.commit()


def test_an_order_and_criteria_of_the_queues_own_are_kept(session: Session) -> None:
    add_emails(session, "a1", "b", "a2", "a3")
    queue = JobQueue(
        Email,
        Email.recipient.like("a%"),
        order_by=Email.recipient.desc(),
        strict_order=True,
    )

    claimed = queue.claim(session, owner="w", limit=2)

    assert recipients(claimed) == ["a3", "a2"]


def test_plain_rows_are_claimed_in_order_and_finished(session: Session) -> None:
    add_emails(session, "a", "b", "c")

    rows = EMAILS.claim_rows(session, owner="w", limit=2)
    EMAILS.complete(session, rows)
    session.commit()

    assert [(row.recipient, row.status) for row in rows] == [("a", "claimed"), ("b", "claimed")]
    statuses = session.scalars(select(Email.status).order_by(Email.id)).all()
    assert statuses == ["done", "done", "unclaimed"]


def test_a_turn_finishes_one_batch_and_claims_the_next(session: Session) -> None:
    add_emails(session, "a", "b", "c")
    first = EMAILS.claim(session, owner="w", limit=2)
    session.commit()

    following = EMAILS.turn(session, first, owner="w", limit=2)
    session.commit()

    assert recipients(following) == ["c"]
    assert session.scalars(select(Email.status).order_by(Email.id)).all() == [
        "done",
        "done",
        "claimed",
    ]


def test_the_criteria_of_a_sessions_hooks_hold(session: Session) -> None:
    add_emails(session, "theirs", "ours", "theirs", "ours")

    @event.listens_for(session, "do_orm_execute")
    def ours_only(state: ORMExecuteState) -> None:
        mine = with_loader_criteria(Email, Email.recipient == "ours")
        state.statement = state.statement.options(mine)

    assert recipients(EMAILS.claim(session, owner="w", limit=3)) == ["ours", "ours"]


def test_relationships_are_loaded_as_asked(session: Session) -> None:
    account = Account(name="n")
    session.add(account)
    session.flush()
    session.add(Letter(account_id=account.id, copy_to_id=account.id))
    session.commit()
    queue = JobQueue(Letter, strict_order=True)

    (letter,) = queue.claim(session, owner="w", options=[joinedload(Letter.copy_to)])
    session.commit()
    session.expunge_all()  # nothing is loaded any more

    assert [it.name for it in (letter.account, letter.copy_to) if it is not None] == ["n", "n"]


def test_jobs_due_later_are_not_claimed(session: Session) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    add_tasks(session, "tomorrow", priority=-5, run_at=tomorrow)
    add_tasks(session, "today")

    claimed = JobQueue(Task, strict_order=True).claim(session, owner="w", limit=2)

    assert names(claimed) == ["today"]


# Whose turn it is, on PostgreSQL


class NamedBase(DeclarativeBase):
    pass


class Named(JobMixin, NamedBase):
    """A table whose name and schema need quotes."""

    __tablename__ = "It's 100% named"
    __table_args__ = {"schema": "one"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("schema", ["one", 'Other "two"'])
def test_the_turn_is_that_of_the_table_that_is_claimed_from(
    fresh_database: URL, schema: str
) -> None:
    engine = make_engine(fresh_database)
    with translated(engine, {"one": schema}) as session:
        NamedBase.metadata.create_all(session.connection())
        session.commit()

        JobQueue(Named, strict_order=True).claim(session, owner="w")

        table = '"' + schema.replace('"', '""') + '"."It\'s 100% named"'
        oid = session.scalar(text("SELECT CAST(:t AS regclass)::oid").bindparams(t=table))
        held = session.execute(
            text(
                "SELECT classid, objid FROM pg_locks "
                "WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
        )
        assert [(*row,) for row in held] == [(SPACE, oid)]
    engine.dispose()


@contextmanager
def translated(engine: Engine, names: dict[str, str]) -> Iterator[Session]:
    """Open a session in which schemas have other names."""
    (schema,) = names.values()
    with engine.connect().execution_options(schema_translate_map=names) as connection:
        connection.exec_driver_sql('CREATE SCHEMA "' + schema.replace('"', '""') + '"')
        connection.commit()
        with Session(connection) as session:
            yield session


@pytest.mark.only_on("mysql", "mariadb")
def test_a_table_without_its_claim_index_is_claimed_from_in_an_old_snapshot_too(
    fresh_database: URL,
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    table = Email.__table__
    assert isinstance(table, Table)
    (index,) = (one for one in table.indexes if str(one.name).endswith("_claim"))
    index.drop(engine)

    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        add_emails(session, "a", "b")
        session.commit()
        session.execute(select(Email.id)).all()
        claimed = JobQueue(Email, strict_order=True).claim(session, owner="w", limit=2)

        assert recipients(claimed) == ["a", "b"]
    engine.dispose()
