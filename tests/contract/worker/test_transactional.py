"""Transactional handlers: their effects and the finish of their job are one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pymysql.err import OperationalError as DriversError
from sqlalchemy import URL, Engine, event, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, reap
from sa_jobqueue.worker import Cancel, Done, Release, Retry
from tests.contract.worker.driver import SOON, Workers
from tests.contract.worker.faults import LostAnswer, heard
from tests.contract.worker.ledger import Entry, Invoice, entries
from tests.support import SERVERS, make_engine, statements_seen, until

pytestmark = pytest.mark.usefixtures("ledger_tables")

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

Handle = Callable[[Session, Invoice], Any]


def book(session: Session, invoice: Invoice) -> None:
    session.add(Entry(name=invoice.name))
    session.flush()


def drain(workers: Workers, handle: Handle = book, **options: Any) -> None:
    workers.drain(workers.queue(Invoice, handle, transactional=True), **options)


def states(workers: Workers) -> dict[str, str]:
    return workers.statuses(Invoice)


# How a handler ends


def outcome(returned: Any) -> Handle:
    return lambda session, invoice: returned


def raising(error: BaseException) -> Handle:
    def handle(session: Session, invoice: Invoice) -> None:
        raise error

    return handle


def of_the_driver(session: Session, end: str) -> None:
    connection: Any = session.connection().connection
    getattr(connection, end)()


def with_savepoints(session: Session, invoice: Invoice) -> None:
    with session.begin_nested() as savepoint:
        session.add(Entry(name="undone"))
        session.flush()
        savepoint.rollback()
    session.begin_nested()
    session.begin_nested()  # and leaves it open


def cancels_after_a_failed_statement(session: Session, invoice: Invoice) -> Cancel:
    with suppress(DBAPIError), session.no_autoflush:
        session.execute(text("SELECT no_such_column"))
    return Cancel("void")


def fails_to_flush(session: Session, invoice: Invoice) -> None:
    session.add(Entry(name=None))


def begins(session: Session, invoice: Invoice) -> None:
    with session.begin():
        pass


def creates_a_table(session: Session, invoice: Invoice) -> None:
    session.execute(text("CREATE TABLE IF NOT EXISTS ledger_entry (id INT)"))


def hides_a_failed_statement(session: Session, invoice: Invoice) -> None:
    with suppress(DBAPIError):
        session.execute(text("SELECT no_such_column"))


def hides_a_failed_statement_and_goes_on(session: Session, invoice: Invoice) -> None:
    hides_a_failed_statement(session, invoice)
    session.execute(text("SELECT 1"))


def goes_on_after(end: Handle, returned: Any = None) -> Handle:
    def handle(session: Session, invoice: Invoice) -> Any:
        end(session, invoice)
        session.execute(text("SELECT 1"))
        return returned

    return handle


def sets(name: str, value: Any) -> Handle:
    return lambda session, invoice: setattr(invoice, name, value)


def commits_by_sql(session: Session, invoice: Invoice) -> None:
    session.execute(text("COMMIT"))


def rolls_back_by_sql(session: Session, invoice: Invoice) -> None:
    session.execute(text("ROLLBACK"))


def lost_connection() -> OperationalError:
    error = OperationalError("SELECT 1", {}, Exception("the connection is lost"))
    error.connection_invalidated = True
    return error


@dataclass(frozen=True)
class Ending:
    """How a handler ends that has booked its invoice and has one attempt.

    Attributes:
        status: of the invoice after it.
        booked: the entry is in the ledger.
        error: words of last_error.
    """

    end: Handle
    status: str = "failed"
    booked: bool = False
    error: str = ""
    marks: tuple[Any, ...] = field(default=(ANYWHERE,))


SAVEPOINTS = "begin_nested()"
BEHIND = "has ended in the handler"
CHANGED = "has deleted its job, or changed"
ALL = ()

ENDINGS = {
    "None": Ending(outcome(None), "done", True, marks=ALL),
    "values": Ending(outcome(Done({Invoice.total: 7})), "done", True),
    "bad values": Ending(outcome(Done({Invoice.total: object()})), marks=ALL),
    "Retry": Ending(outcome(Retry(SOON, "busy")), error="busy"),
    "Cancel": Ending(outcome(Cancel("void")), "cancelled", error="void", marks=ALL),
    "raises": Ending(raising(ValueError("no luck")), error="ValueError: no luck", marks=ALL),
    "unflushable": Ending(fails_to_flush, marks=ALL),
    "lost connection": Ending(raising(lost_connection())),
    "deadlock": Ending(raising(OperationalError("SELECT 1", {}, DriversError(1213, "Deadlock")))),
    "commit": Ending(lambda session, invoice: session.commit(), error=SAVEPOINTS),
    "rollback": Ending(lambda session, invoice: session.rollback(), error=SAVEPOINTS),
    "close": Ending(lambda session, invoice: session.close(), error=SAVEPOINTS),
    "rollback beneath": Ending(
        lambda session, invoice: session.connection().get_transaction().rollback(),  # type: ignore[union-attr]
        error=SAVEPOINTS,
    ),
    "begin": Ending(begins, error="already begun"),
    "savepoints": Ending(with_savepoints, "done", True, marks=ALL),
    "COMMIT": Ending(commits_by_sql, booked=True, error=BEHIND, marks=ALL),
    "COMMIT and more": Ending(goes_on_after(commits_by_sql), booked=True, error=BEHIND, marks=ALL),
    "COMMIT and Cancel": Ending(
        goes_on_after(commits_by_sql, Cancel("void")), booked=True, error=BEHIND, marks=ALL
    ),
    "ROLLBACK": Ending(rolls_back_by_sql, error=BEHIND, marks=ALL),
    "ROLLBACK and more": Ending(goes_on_after(rolls_back_by_sql), error=BEHIND, marks=ALL),
    "the driver's commit": Ending(
        lambda session, invoice: of_the_driver(session, "commit"),
        booked=True,
        error=BEHIND,
        marks=ALL,
    ),
    "the driver's rollback": Ending(
        lambda session, invoice: of_the_driver(session, "rollback"), error=BEHIND, marks=ALL
    ),
    "CREATE TABLE": Ending(
        creates_a_table,
        booked=True,
        error="CREATE TABLE or TRUNCATE",
        marks=(pytest.mark.only_on("mysql", "mariadb"),),
    ),
    "a failed statement": Ending(
        hides_a_failed_statement, error=SAVEPOINTS, marks=(pytest.mark.only_on("postgresql"),)
    ),
    "a failed statement and more": Ending(
        hides_a_failed_statement_and_goes_on,
        error=SAVEPOINTS,
        marks=(pytest.mark.only_on("postgresql"),),
    ),
    "a failed statement and Cancel": Ending(
        cancels_after_a_failed_statement, "cancelled", error="void", marks=ALL
    ),
    "deletes its job": Ending(lambda session, invoice: session.delete(invoice), error=CHANGED),
    "deletes its row": Ending(
        lambda session, invoice: session.execute(text("DELETE FROM ledger_invoice")), error=CHANGED
    ),
    "sets its status": Ending(sets("status", "done"), error=CHANGED, marks=ALL),
    "sets its owner": Ending(sets("owner", "thief"), error=CHANGED),
    "sets its owner_date": Ending(sets("owner_date", None), error=CHANGED),
    "sets its key": Ending(sets("id", 4711), error=CHANGED),
}


@pytest.mark.parametrize(
    "ending", [pytest.param(each, id=name, marks=each.marks) for name, each in ENDINGS.items()]
)
def test_effects_are_committed_with_the_finish_of_a_job_or_not_at_all(
    workers: Workers, ending: Ending
) -> None:
    workers.add("a", entity=Invoice, max_attempts=1)

    def handle(session: Session, invoice: Invoice) -> Any:
        workers.note(invoice)
        book(session, invoice)
        return ending.end(session, invoice)

    drain(workers, handle)

    assert workers.handled == ["a"]
    assert entries(workers.plain) == (["a"] if ending.booked else [])
    ((status, attempts, error),) = workers.rows(Invoice).values()
    assert (status, attempts) == (ending.status, 1)
    assert ending.error in str(error)


def test_a_job_that_is_given_back_takes_its_effects_back(workers: Workers) -> None:
    workers.add("a", entity=Invoice, max_attempts=1)
    outcomes = iter([Release(), None])

    def handle(session: Session, invoice: Invoice) -> Any:
        book(session, invoice)
        return next(outcomes)

    drain(workers, handle)

    assert entries(workers.plain) == ["a"]
    assert list(workers.rows(Invoice).values()) == [("done", 1, None)]


@pytest.mark.parametrize("delete", [False, True])
def test_a_job_costs_one_transaction_more(workers: Workers, delete: bool) -> None:
    workers.add("a", entity=Invoice)
    commits = LostAnswer(workers.engine, -1)

    with commits:
        drain(workers, owner="w", reap_every=None, delete=delete)

    # The claim, the handler, an empty claim, the look for jobs that are left.
    assert commits.seen == 4
    assert entries(workers.plain) == ["a"]
    assert states(workers) == ({} if delete else {"a": "done"})


@pytest.mark.only_on("sqlite")
def test_a_handler_that_reads_before_it_writes_waits_for_the_other_worker(workers: Workers) -> None:
    """SQLite refuses a write at once if its transaction has read before another has written."""
    workers.add(*map(str, range(20)), entity=Invoice)

    def count_and_book(session: Session, invoice: Invoice) -> None:
        session.scalars(select(Entry)).all()
        time.sleep(0.01)
        book(session, invoice)

    queue = workers.queue(Invoice, count_and_book, transactional=True)
    with workers.running(queue), workers.running(queue):
        until(lambda: len(entries(workers.plain)) == 20)

    assert set(workers.rows(Invoice).values()) == {("done", 1, None)}


def test_the_lock_of_a_handler_is_read_by_key_and_read_committed(
    workers: Workers, db_alias: str
) -> None:
    workers.add("a", entity=Invoice)

    with statements_seen(workers.engine) as seen:
        drain(workers, owner="w", reap_every=None)

    begin = next(i for i, text in enumerate(seen) if "INSERT INTO ledger_entry" in text)
    before = seen[:begin][-4:]
    locks = {"postgresql": "FOR NO KEY UPDATE", "sqlite": "ledger_invoice.owner_date ="}
    assert any(locks.get(db_alias, "FOR UPDATE") in text for text in before)
    if db_alias in ("mysql", "mariadb"):
        assert any("READ COMMITTED" in text for text in before)


# Lost claims and lost answers


@ANYWHERE
def test_a_job_whose_claim_was_lost_is_not_handled(workers: Workers) -> None:
    workers.add("a", "b", entity=Invoice)
    told: list[str] = []

    def handle(session: Session, invoice: Invoice) -> None:
        workers.note(invoice)
        book(session, invoice)

    drain(
        workers,
        handle,
        limit=2,
        on_claim=lambda claim: workers.execute(
            update(Invoice).where(Invoice.name == "a").values(owner="thief")
        ),
        on_outcome=lambda job, outcome: told.append(job.name),
    )

    assert entries(workers.plain) == workers.handled == told == ["b"]
    assert states(workers) == {"a": "claimed", "b": "done"}


@pytest.mark.parametrize("committed", [False, True])
def test_after_a_lost_answer_to_the_commit_the_effects_are_there_once(
    workers: Workers, committed: bool
) -> None:
    workers.add("a", "b", entity=Invoice, max_attempts=1)
    told: list[str] = []

    def handle(session: Session, invoice: Invoice) -> None:
        workers.note(invoice)
        book(session, invoice)

    # The first COMMIT is that of the claim.
    with LostAnswer(workers.engine, 1, committed=committed):
        drain(
            workers,
            handle,
            owner="w",
            reap_every=None,
            on_outcome=lambda job, outcome: told.append(job.name),
        )

    assert entries(workers.plain) == told == ["a", "b"]
    assert workers.handled == (["a", "b"] if committed else ["a", "a", "b"])
    assert set(states(workers).values()) == {"done"}


@ANYWHERE
@pytest.mark.parametrize("status", ["claimed", "done"])
def test_a_job_that_others_took_after_a_failed_commit_is_not_reported_as_done(
    workers: Workers, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("a", entity=Invoice)
    told: list[str] = []
    lost: list[int] = []

    def steal(connection: Any) -> None:
        if lost == [1]:
            lost.append(2)
            workers.execute(update(Invoice).values(status=status, owner="thief"))

    with (
        heard(workers.engine, "begin", steal),
        LostAnswer(workers.engine, 1, lambda: lost.append(1), committed=False),
    ):
        drain(
            workers,
            owner="w",
            reap_every=None,
            on_outcome=lambda job, outcome: told.append(job.name),
        )

    assert (entries(workers.plain), states(workers)) == ([], {"a": status})
    assert told == []
    assert "its claim was lost to a reap, another owner" in caplog.text


# Locks and renewals


#: MariaDB refuses a REPEATABLE READ that would read what others have changed, unless told not to.
LEVELS = [
    *(
        pytest.param(level, None, marks=pytest.mark.only_on("postgresql", "mysql"))
        for level in ("READ COMMITTED", "REPEATABLE READ")
    ),
    *(
        pytest.param("REPEATABLE READ", setting, marks=pytest.mark.only_on("mariadb"))
        for setting in ("ON", "OFF")
    ),
]


@pytest.mark.parametrize(("level", "setting"), LEVELS)
def test_a_handler_that_outlives_its_lease_finishes_beside_a_renewed_neighbour(
    threads: Workers, db_url: URL, level: str, setting: str | None
) -> None:
    """The row lock keeps its claim, which is not renewed."""
    b = (threads.add("a", "b", entity=Invoice)[1],)
    lease = timedelta(milliseconds=300)
    own = make_engine(db_url, isolation_level=level)
    if setting is not None:

        @event.listens_for(own, "connect")
        def set_it(connection: Any, record: object) -> None:
            connection.cursor().execute(f"SET innodb_snapshot_isolation = {setting}")

    def handle(session: Session, invoice: Invoice) -> None:
        invoice.total = 1
        session.flush()
        before = threads.dates(Invoice)
        if invoice.name == "a":
            until(lambda: threads.dates(Invoice)["b"] > before["b"] + lease)
            assert threads.dates(Invoice)["a"] == before["a"]
            with Session(own) as other:  # a renewal of b may be late
                assert {job.identity for job in reap(other, Invoice, lease=lease).jobs} <= {b}
        book(session, invoice)

    queue = threads.queue(Invoice, handle, transactional=True, lease=lease)
    threads.drain(queue, bind=own, owner="w", limit=2)
    own.dispose()

    assert (entries(threads.plain), states(threads)) == (["a", "b"], {"a": "done", "b": "done"})


@pytest.mark.only_on(*SERVERS)
def test_a_handler_that_has_waited_for_its_row_until_the_run_ended_is_not_called(
    threads: Workers, session: Session
) -> None:
    threads.add("a", entity=Invoice)

    def lock(claim: Any) -> None:
        session.execute(select(Invoice.id).where(Invoice.id == claim[0].id).with_for_update())
        stopper.start()

    def handle(session: Session, invoice: Invoice) -> None:
        threads.note(invoice)

    queue = threads.queue(Invoice, handle, transactional=True)
    grace = timedelta(seconds=0.3)
    worker = threads.make(queue, grace=grace, reap_every=None, on_claim=lock)
    stopper = threading.Timer(0.3, worker.stop)
    before = set(threading.enumerate())
    threads.run(worker)
    waiting = set(threading.enumerate()) - before
    session.rollback()
    for thread in waiting:
        thread.join(30)

    assert waiting
    assert threads.handled == []


# Sessions


class Own(Session):
    """The application's session."""


@ANYWHERE
def test_the_handlers_session_is_of_the_applications_kind(workers: Workers) -> None:
    workers.add("a", entity=Invoice)
    kinds: list[type[Session]] = []

    drain(workers, lambda own, invoice: kinds.append(type(own)), bind=workers.sessions(Own))

    assert issubclass(kinds[0], Own)


@ANYWHERE
def test_sessions_that_commit_in_two_phases_are_refused(workers: Workers, engine: Engine) -> None:
    queue = workers.queue(Invoice, book, transactional=True)

    with pytest.raises(ArgumentError, match="twophase"):
        workers.make(queue, bind=workers.sessions(twophase=True))
