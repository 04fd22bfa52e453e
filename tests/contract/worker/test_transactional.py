"""Transactional handlers: their effects and the finish of their job are one commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pymysql.err import OperationalError as DriversError
from sqlalchemy import URL, Engine, event, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import ArgumentError, Fence, JobQueue, is_transient, reap
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Cancel, Done, Retry, Worker
from sa_jobqueue.worker.heartbeat import Heartbeat
from tests.contract.asyncio.support import make_async_engine
from tests.contract.worker.fault_injection import FaultInjection
from tests.contract.worker.ledger import Base, Entry, Invoice, add_invoices, entries, statuses
from tests.contract.worker.support import hands_of
from tests.contract.worker.survival import FEW, MANY, SEED
from tests.running import ASYNC_DRIVERS
from tests.support import SERVERS, make_engine, statements_seen, until, with_empty_tables

SOON = timedelta(milliseconds=20)
Handle = Callable[[Session, Invoice], Any]


@pytest.fixture
def ledger(engine: Engine) -> Iterator[Session]:
    """A session on the empty tables of the ledger."""
    Base.metadata.create_all(engine)
    with_empty_tables(engine, Base.metadata)
    with Session(engine) as session:
        yield session


def work(bind: Any, handle: Handle, **options: Any) -> None:
    """Drain the invoices with a transactional handler."""
    queue = JobQueue(Invoice)
    queue.handler(transactional=True)(handle)
    options = {"drain": True, "poll": SOON, "backoff": lambda attempts: SOON, **options}
    Worker(bind, queue, **options).run()


def work_awaited(bind: Any, handle: Handle, **options: Any) -> None:
    """Drain the invoices with an awaited handler that does the same in its AsyncSession."""
    queue = JobQueue(Invoice)

    @queue.handler(transactional=True)
    async def handle_in(session: AsyncSession, invoice: Invoice) -> Any:
        return await session.run_sync(handle, invoice)

    async def run() -> None:
        own = make_async_engine(bind.url, ASYNC_DRIVERS[bind.url.get_backend_name()])
        given = {"drain": True, "poll": SOON, "backoff": lambda attempts: SOON, **options}
        await AsyncWorker(own, queue, **given).run()
        await own.dispose()

    asyncio.run(run())


Work = Callable[..., None]


@pytest.fixture(params=[work, work_awaited], ids=["Worker", "AsyncWorker"])
def drain(request: pytest.FixtureRequest) -> Work:
    """Drain the invoices with a transactional handler, by each kind of worker."""
    drain: Work = request.param
    return drain


def book(session: Session, invoice: Invoice) -> None:
    session.add(Entry(name=invoice.name))


def test_effects_and_finish_are_one_commit(engine: Engine, ledger: Session) -> None:
    add_invoices(ledger, "a", "b")
    told: list[str] = []

    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        invoice.total = 7
        session.flush()
        assert (statuses(ledger)[invoice.name], invoice.name in entries(ledger)) == (
            "claimed",
            False,
        )

    work(engine, handle, limit=2, on_outcome=lambda job, outcome: told.append(job.name))

    assert entries(ledger) == told == ["a", "b"]
    assert statuses(ledger) == {"a": "done", "b": "done"}
    assert ledger.scalars(select(Invoice.total)).all() == [7, 7]


@pytest.mark.parametrize("delete", [False, True])
def test_a_job_costs_one_transaction_more(engine: Engine, ledger: Session, delete: bool) -> None:
    add_invoices(ledger, "a")
    commits: list[int] = []
    commit = engine.dialect.do_commit

    def counted(connection: Any) -> None:
        commits.append(1)
        commit(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", counted)
        work(engine, book, owner="w", reap_every=None, delete=delete)

    # The claim, the handler, an empty claim, the look for jobs that are left.
    assert len(commits) == 4
    assert (entries(ledger), statuses(ledger)) == (["a"], {} if delete else {"a": "done"})


def test_own_columns_that_a_handler_returns_are_in_the_same_commit(
    engine: Engine, ledger: Session, drain: Work
) -> None:
    add_invoices(ledger, "good", "bad", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> Done:
        book(session, invoice)
        return Done({Invoice.total: 7} if invoice.name == "good" else {Invoice.total: object()})

    drain(engine, handle, limit=2)

    assert (entries(ledger), statuses(ledger)) == (["good"], {"good": "done", "bad": "failed"})
    assert ledger.scalars(select(Invoice.total).order_by(Invoice.total)).all() == [0, 7]


@pytest.mark.parametrize("how", ["Retry", "raises", "Cancel", "unflushable"])
def test_what_is_not_done_leaves_no_effects(
    engine: Engine, ledger: Session, drain: Work, how: str
) -> None:
    add_invoices(ledger, "a", max_attempts=2)
    attempts: list[str] = []

    def handle(session: Session, invoice: Invoice) -> Any:
        book(session, invoice)
        attempts.append(invoice.name)
        if how == "Cancel":
            return Cancel("void")
        if len(attempts) > 1:
            return None
        if how == "raises":
            raise ValueError(how)
        if how == "unflushable":
            session.add(Entry(name=None))
            return None
        return Retry(SOON)

    drain(engine, handle)

    cancelled = how == "Cancel"
    assert entries(ledger) == ([] if cancelled else ["a"])
    assert statuses(ledger) == {"a": "cancelled" if cancelled else "done"}


@pytest.mark.parametrize(
    "end",
    [
        lambda session, invoice: session.commit(),
        lambda session, invoice: session.rollback(),
        lambda session, invoice: session.close(),
        lambda session, invoice: session.connection().get_transaction().rollback(),
    ],
    ids=["commit", "rollback", "close", "beneath"],
)
def test_a_handler_that_ends_its_transaction_has_failed(
    engine: Engine, ledger: Session, drain: Work, end: Handle
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        session.flush()
        end(session, invoice)

    drain(engine, handle)

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "failed"})
    assert "begin_nested()" in str(ledger.scalar(select(Invoice.last_error)))


def _commit_the_drivers(session: Session, invoice: Invoice) -> None:
    connection: Any = session.connection().connection
    connection.commit()


def _roll_back_the_drivers(session: Session, invoice: Invoice) -> None:
    connection: Any = session.connection().connection
    connection.rollback()


@pytest.mark.parametrize("and_goes_on", [False, True])
@pytest.mark.parametrize(
    ("end", "committed"),
    [
        (lambda session, invoice: session.execute(text("COMMIT")), True),
        (lambda session, invoice: session.execute(text("ROLLBACK")), False),
        (_commit_the_drivers, True),
        (_roll_back_the_drivers, False),
    ],
    ids=["COMMIT", "ROLLBACK", "driver-commit", "driver-rollback"],
)
def test_a_transaction_that_ends_behind_sqlalchemys_back_finishes_no_job(
    engine: Engine,
    ledger: Session,
    drain: Work,
    end: Handle,
    committed: bool,
    and_goes_on: bool,
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        session.flush()
        end(session, invoice)
        if and_goes_on:
            session.execute(text("SELECT 1"))

    drain(engine, handle)

    assert statuses(ledger) == {"a": "failed"}
    assert entries(ledger) == (["a"] if committed else [])
    assert "has ended in the handler" in str(ledger.scalar(select(Invoice.last_error)))


@pytest.mark.only_on("mysql", "mariadb")
def test_a_statement_that_commits_by_itself_finishes_no_job(
    engine: Engine, ledger: Session, drain: Work
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        session.flush()
        session.execute(text("CREATE TABLE IF NOT EXISTS ledger_entry (id INT)"))

    drain(engine, handle)

    assert (entries(ledger), statuses(ledger)) == (["a"], {"a": "failed"})
    assert "CREATE TABLE or TRUNCATE" in str(ledger.scalar(select(Invoice.last_error)))


@pytest.mark.parametrize("and_goes_on", [False, True])
@pytest.mark.only_on("postgresql")
def test_a_handler_that_hides_a_failed_statement_is_told_of_savepoints(
    engine: Engine, ledger: Session, and_goes_on: bool
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        with suppress(ProgrammingError):
            session.execute(text("SELECT no_such_column"))
        if and_goes_on:
            session.execute(text("SELECT 1"))

    work(engine, handle)

    assert statuses(ledger) == {"a": "failed"}
    assert "session.begin_nested()" in str(ledger.scalar(select(Invoice.last_error)))


def test_a_handler_that_begins_a_transaction_is_told_of_savepoints(
    engine: Engine, ledger: Session
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        with session.begin():
            book(session, invoice)

    work(engine, handle)

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "failed"})
    assert "use session.begin_nested()" in str(ledger.scalar(select(Invoice.last_error)))


def test_a_handler_may_use_savepoints(engine: Engine, ledger: Session, drain: Work) -> None:
    add_invoices(ledger, "a")

    def handle(session: Session, invoice: Invoice) -> None:
        with session.begin_nested():
            book(session, invoice)
        with session.begin_nested() as savepoint:
            session.add(Entry(name="undone"))
            session.flush()
            savepoint.rollback()

    drain(engine, handle)

    assert (entries(ledger), statuses(ledger)) == (["a"], {"a": "done"})


def test_a_savepoint_that_is_left_open_is_released(
    engine: Engine, ledger: Session, drain: Work
) -> None:
    add_invoices(ledger, "a", max_attempts=1)
    called: list[str] = []

    def handle(session: Session, invoice: Invoice) -> None:
        called.append(invoice.name)
        session.begin_nested()
        session.begin_nested()
        book(session, invoice)

    drain(engine, handle)

    assert called == ["a"]
    assert (entries(ledger), statuses(ledger)) == (["a"], {"a": "done"})


def test_a_handler_may_cancel_its_job_after_a_failed_statement(
    engine: Engine, ledger: Session, drain: Work
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> Any:
        book(session, invoice)
        with suppress(DBAPIError), session.no_autoflush:
            session.execute(text("SELECT no_such_column"))
        return Cancel("void")

    drain(engine, handle)

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "cancelled"})


@pytest.mark.parametrize(
    "change",
    [
        lambda session, invoice: session.delete(invoice),
        lambda session, invoice: setattr(invoice, "status", "done"),
        lambda session, invoice: setattr(invoice, "owner", "thief"),
        lambda session, invoice: setattr(invoice, "owner_date", None),
        lambda session, invoice: setattr(invoice, "id", 4711),
        lambda session, invoice: session.execute(text("DELETE FROM ledger_invoice")),
    ],
    ids=["delete", "status", "owner", "owner_date", "key", "statement"],
)
def test_a_handler_that_changes_what_its_job_is_known_by_has_failed(
    engine: Engine, ledger: Session, drain: Work, change: Handle
) -> None:
    add_invoices(ledger, "a", max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        change(session, invoice)

    drain(engine, handle)

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "failed"})
    assert "has deleted its job, or changed" in str(ledger.scalar(select(Invoice.last_error)))


def test_a_job_whose_claim_was_lost_is_not_handled(
    engine: Engine, ledger: Session, drain: Work
) -> None:
    add_invoices(ledger, "a", "b")
    called: list[str] = []
    told: list[str] = []

    def handle(session: Session, invoice: Invoice) -> None:
        called.append(invoice.name)
        book(session, invoice)

    def steal(claim: Any) -> None:
        with Session(engine) as thief:
            thief.execute(update(Invoice).where(Invoice.name == "a").values(owner="thief"))
            thief.commit()

    drain(
        engine,
        handle,
        limit=2,
        on_claim=steal,
        on_outcome=lambda job, outcome: told.append(job.name),
    )

    assert entries(ledger) == called == told == ["b"]
    assert statuses(ledger) == {"a": "claimed", "b": "done"}


@pytest.mark.parametrize("committed", [False, True])
def test_after_a_lost_answer_to_the_commit_the_effects_are_there_once(
    engine: Engine, ledger: Session, committed: bool
) -> None:
    add_invoices(ledger, "a", "b", max_attempts=1)
    called: list[str] = []
    told: list[str] = []
    to_break = [1]
    commit = engine.dialect.do_commit

    def commit_and_break(connection: Any) -> None:
        breaks = called and to_break
        if committed or not breaks:
            commit(connection)
        if breaks:
            to_break.clear()
            error = OperationalError("COMMIT", {}, Exception("gone"))
            error.connection_invalidated = True
            raise error

    def handle(session: Session, invoice: Invoice) -> None:
        called.append(invoice.name)
        book(session, invoice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", commit_and_break)
        work(engine, handle, on_outcome=lambda job, outcome: told.append(job.name))

    assert entries(ledger) == told == ["a", "b"]
    assert called == (["a", "b"] if committed else ["a", "a", "b"])
    assert set(statuses(ledger).values()) == {"done"}


@pytest.mark.parametrize("status", ["claimed", "done"])
def test_a_job_that_others_took_after_a_failed_commit_is_not_reported_as_done(
    engine: Engine, ledger: Session, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_invoices(ledger, "a")
    told: list[str] = []
    steps = ["book", "break", "steal"]
    commit = engine.dialect.do_commit

    def break_once(connection: Any) -> None:
        if steps[0] != "break":
            return commit(connection)
        steps.remove("break")
        error = OperationalError("COMMIT", {}, Exception("gone"))
        error.connection_invalidated = True
        raise error

    @event.listens_for(engine, "begin")
    def steal(connection: Any) -> None:
        if steps[0] == "steal":
            steps[:] = ["over"]
            with Session(engine) as thief:
                thief.execute(update(Invoice).values(status=status, owner="thief"))
                thief.commit()

    def handle(session: Session, invoice: Invoice) -> None:
        steps.remove("book")
        book(session, invoice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", break_once)
        work(engine, handle, on_outcome=lambda job, outcome: told.append(job.name))
    event.remove(engine, "begin", steal)

    assert (entries(ledger), statuses(ledger)) == ([], {"a": status})
    assert told == []
    assert "its claim is gone" in caplog.text


@pytest.mark.parametrize(
    ("cause", "connection_lost"),
    [
        (Exception("the connection is lost"), True),
        (DriversError(1213, "Deadlock found when trying to get lock"), False),
    ],
    ids=["connection", "deadlock"],
)
def test_what_would_run_a_transaction_again_is_an_attempt_inside_a_handler(
    engine: Engine, ledger: Session, drain: Work, cause: Exception, connection_lost: bool
) -> None:
    add_invoices(ledger, "a", max_attempts=1)
    called: list[str] = []
    error = OperationalError("SELECT 1", {}, cause)
    error.connection_invalidated = connection_lost
    assert connection_lost or is_transient(error)

    def handle(session: Session, invoice: Invoice) -> None:
        called.append(invoice.name)
        if len(called) == 1:
            raise error

    drain(engine, handle)

    assert (called, statuses(ledger)) == (["a"], {"a": "failed"})


def test_a_job_whose_row_its_handler_has_locked_is_not_renewed(
    engine: Engine, ledger: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_invoices(ledger, "a", "b")
    renewed: list[set[Any]] = []
    renew = Heartbeat._renewed

    def noted(self: Heartbeat, fences: Sequence[Fence]) -> Sequence[Fence]:
        renewed.append({fence.identity for fence in fences})
        return renew(self, fences)

    def handle(session: Session, invoice: Invoice) -> None:
        if invoice.name == "a":
            renewed.clear()
            until(lambda: renewed)
            assert renewed[0] == {(invoice.id + 1,)}

    monkeypatch.setattr(Heartbeat, "_renewed", noted)
    queue = JobQueue(Invoice, lease=timedelta(milliseconds=300))
    queue.handler(transactional=True)(handle)
    Worker(engine, queue, limit=2, drain=True, poll=SOON).run()

    assert statuses(ledger) == {"a": "done", "b": "done"}


class Own(Session):
    """The application's session."""


def test_the_handlers_session_is_of_the_applications_kind(engine: Engine, ledger: Session) -> None:
    add_invoices(ledger, "a")
    kinds: list[type[Session]] = []

    work(sessionmaker(engine, class_=Own), lambda session, invoice: kinds.append(type(session)))

    assert [kind.__mro__[1] for kind in kinds] == [Own] or kinds == [Own]


def test_sessions_that_others_commit_are_refused(engine: Engine) -> None:
    queue = JobQueue(Invoice)
    queue.handler(transactional=True)(book)

    with pytest.raises(ArgumentError, match="twophase"):
        Worker(sessionmaker(engine, twophase=True), queue)


def test_the_lock_of_a_handler_is_read_by_key_and_read_committed(
    engine: Engine, ledger: Session, db_alias: str
) -> None:
    add_invoices(ledger, "a")

    with statements_seen(engine) as seen:
        work(engine, book, owner="w", reap_every=None)

    begin = next(i for i, text in enumerate(seen) if "INSERT INTO ledger_entry" in text)
    before = seen[:begin][-4:]
    locks = {"postgresql": "FOR NO KEY UPDATE", "sqlite": "ledger_invoice.owner_date ="}
    assert any(locks.get(db_alias, "FOR UPDATE") in text for text in before)
    if db_alias in ("mysql", "mariadb"):
        assert any("READ COMMITTED" in text for text in before)


@pytest.mark.timeout(600)
def test_each_job_has_one_row_in_the_ledger_whatever_goes_wrong(
    engine: Engine,
    ledger: Session,
    db_url: URL,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statements are refused, connections killed, and answers of COMMIT lost."""
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(milliseconds=2))
    wanted = MANY if full else FEW
    names = sorted(f"job {number}" for number in range(wanted))
    add_invoices(ledger, *names)
    connected, queue = make_engine(db_url), JobQueue(Invoice)

    def stop_when_done() -> None:
        if set(statuses(ledger).values()) == {"done"}:
            worker.stop()

    faults = FaultInjection(connected, db_url, seed=SEED, wanted=wanted, when_over=stop_when_done)

    @queue.handler(transactional=True)
    def handle(session: Session, invoice: Invoice) -> None:
        faults.begin()
        book(session, invoice)

    worker = Worker(
        connected,
        queue,
        owner="w",
        limit=3,
        poll=SOON,
        backoff=lambda attempts: SOON,
        reap_every=None,
    )
    with faults:
        worker.run()

    connected.dispose()
    assert entries(ledger) == names
    if full:
        assert set(faults.seen) == set(faults.kinds)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("setting", ["ON", "OFF"])
def test_a_handler_of_three_leases_finishes_beside_a_renewed_neighbour(
    ledger: Session, db_url: URL, db_alias: str, level: str, setting: str
) -> None:
    if db_alias != "mariadb" and setting == "ON":
        pytest.skip("only MariaDB has innodb_snapshot_isolation")
    add_invoices(ledger, "a", "b")
    lease = timedelta(milliseconds=300)
    queue = JobQueue(Invoice, lease=lease)
    own = make_engine(db_url, isolation_level=level)
    if db_alias == "mariadb":

        @event.listens_for(own, "connect")
        def set_it(connection: Any, record: object) -> None:
            connection.cursor().execute(f"SET innodb_snapshot_isolation = {setting}")

    def dates() -> dict[str, Any]:
        ledger.rollback()
        found = ledger.execute(select(Invoice.name, Invoice.owner_date))
        return {row.name: row.owner_date for row in found}

    def renewed(name: str) -> bool:
        first = ledger.info.setdefault("first", dates())
        now = dates()
        if now[name] == first[name]:
            return False
        ledger.info["first"] = now
        return True

    @queue.handler(transactional=True)
    def handle(session: Session, invoice: Invoice) -> None:
        invoice.total = 1
        session.flush()
        began = time.monotonic()
        if invoice.name == "a":
            until(lambda: renewed("b"))
            until(lambda: renewed("b"))
        until(lambda: time.monotonic() > began + 3 * lease.total_seconds())
        with Session(own) as other:
            assert not reap(other, Invoice, lease=lease)
        book(session, invoice)

    Worker(own, queue, owner="w", limit=2, drain=True, poll=SOON).run()

    own.dispose()
    assert (entries(ledger), statuses(ledger)) == (["a", "b"], {"a": "done", "b": "done"})


def test_a_worker_that_stops_while_its_server_is_away_releases_the_job(
    engine: Engine, ledger: Session
) -> None:
    add_invoices(ledger, "a")
    queue = JobQueue(Invoice)
    commit, broken = engine.dialect.do_commit, [1]

    def refuse(connection: Any) -> None:
        if worker.stopping and broken:
            broken.clear()
            error = OperationalError("COMMIT", {}, Exception("gone"))
            error.connection_invalidated = True
            raise error
        commit(connection)

    @queue.handler(transactional=True)
    def handle(session: Session, invoice: Invoice) -> None:
        book(session, invoice)
        worker.stop()

    worker = Worker(engine, queue, poll=SOON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", refuse)
        worker.run()

    assert (entries(ledger), statuses(ledger)) == ([], {"a": "unclaimed"})
    assert ledger.scalar(select(Invoice.attempts)) == 0


@pytest.mark.only_on(*SERVERS)
def test_a_handler_that_has_waited_for_its_row_until_the_run_ended_is_not_called(
    engine: Engine, ledger: Session
) -> None:
    add_invoices(ledger, "a")
    called: list[str] = []
    queue = JobQueue(Invoice)
    queue.handler(transactional=True)(lambda session, invoice: called.append(invoice.name))

    def lock(claim: Any) -> None:
        ledger.execute(select(Invoice.id).where(Invoice.id == claim[0].id).with_for_update())
        stopper.start()

    def stop_when_it_runs() -> None:
        until(lambda: hands_of(worker).running)
        worker.stop()

    grace = timedelta(seconds=0.5)
    worker = Worker(engine, queue, grace=grace, poll=SOON, reap_every=None, on_claim=lock)
    stopper = threading.Thread(target=stop_when_it_runs)
    worker.run()
    waiting = [each for each in threading.enumerate() if each.name == "sa_jobqueue handler 1"]
    ledger.rollback()
    for thread in waiting:
        thread.join(30)

    assert waiting
    assert called == []
