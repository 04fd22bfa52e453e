"""What goes wrong at any statement or COMMIT costs no job: each is handled and finished once."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import URL, delete
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Owner
from tests.clock import Clock
from tests.contract.owners.restricted_user import restricted_user
from tests.contract.worker import ledger
from tests.contract.worker.driver import KINDS, Workers
from tests.contract.worker.fault_injection import REFUSED, FaultInjection
from tests.contract.worker.faults import (
    Faults,
    LostAnswer,
    deadlock,
    faults_in,
    heard,
    kill,
    refused,
    refused_by_network,
    transient,
)
from tests.contract.worker.ledger import Entry, Invoice
from tests.models import Task
from tests.support import SERVERS, make_engine

SEED = 20261122

#: How many faults a worker survives: in CI, and with --full.
FEW, MANY = 12, 500

ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
A_SERVER = pytest.mark.by_turns(*SERVERS)


def drained_with(workers: Workers, faults: Any, **options: Any) -> None:
    """Drain five jobs while something goes wrong, and expect each to be handled once."""
    workers.execute(delete(Task))
    workers.add(*"abcde", max_attempts=1)
    workers.handled.clear()

    with faults:
        workers.drain(Task, **{"limit": 2, "owner": "w", "reap_every": None, **options})

    assert Counter(workers.handled) == Counter("abcde")
    assert set(workers.statuses().values()) == {"done"}


def statements_of_a_run(workers: Workers, **options: Any) -> int:
    counted = Faults(-1, lambda connection: None)
    drained_with(workers, faults_in(workers.engine, counted), **options)
    assert counted.seen > 5
    return counted.seen


# What passes on all databases, and what no driver knows on one.
@pytest.mark.parametrize("kind", [deadlock, pytest.param(refused, marks=ANYWHERE)])
def test_an_error_at_any_statement_costs_no_job(
    workers: Workers, db_alias: str, kind: Callable[[str], Exception]
) -> None:
    def fail(connection: Any) -> None:
        raise kind(db_alias)

    # The first statement asks for the lock timeout: a refusal at the start ends the run.
    for number in range(kind is refused, statements_of_a_run(workers)):
        drained_with(workers, faults_in(workers.engine, Faults(number, fail)))


@pytest.mark.parametrize("autocommit", [False, pytest.param(True, marks=A_SERVER)])
@pytest.mark.only_on(*SERVERS)
def test_a_connection_killed_at_any_statement_costs_no_job(
    workers: Workers, db_url: URL, db_alias: str, autocommit: bool
) -> None:
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    used = workers.engine.execution_options(**level)
    for number in range(statements_of_a_run(workers, bind=used)):
        faults = faults_in(workers.engine, Faults(number, kill(db_url, db_alias)))
        drained_with(workers, faults, bind=used)


@pytest.mark.parametrize(
    ("given", "autocommit"),
    [
        pytest.param(None, False, marks=ANYWHERE),
        ("a name", False),
        pytest.param("a name", True, marks=ANYWHERE),
        pytest.param("an Owner", False, marks=ANYWHERE),
    ],
)
def test_the_answer_of_any_commit_may_be_lost(
    workers: Workers, given: str | None, autocommit: bool
) -> None:
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    used = workers.engine.execution_options(**level)
    owner: Any = Owner(workers.plain) if given == "an Owner" else nullcontext(given)
    with owner as name:
        for number in range(20):
            lost = LostAnswer(workers.engine, number)
            drained_with(workers, lost, bind=used, owner=name)
            if lost.seen <= number:
                break
        assert number > 3


# Faults in a row


RARER = ("AUTOCOMMIT", "transactional", "transactional asyncio")


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=ANYWHERE) for kind in RARER)])
def survival(request: pytest.FixtureRequest, engine: Any) -> Iterator[tuple[Workers, str]]:
    """Workers, and what is special about their run."""
    kind = "asyncio" if "asyncio" in request.param else "threads"
    workers = Workers(kind, engine)
    workers.engine = workers.engine_for(engine.url)
    yield workers, request.param
    workers.engine.dispose(close=not workers.awaits)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ledger_tables")
def test_a_worker_survives_faults_in_a_row_and_handles_each_job_once(
    survival: tuple[Workers, str], db_url: URL, full: bool, clock: Clock
) -> None:
    """A transactional handler has effects once; it may be called again."""
    workers, kind = survival
    transactional = kind.startswith("transactional")
    entity: Any = Invoice if transactional else Task
    wanted = MANY if full else FEW
    names = sorted(f"job {number}" for number in range(wanted))
    workers.add(*names, entity=entity, max_attempts=None if transactional else 1)

    calls = itertools.count(1)

    def stop_when_handled() -> None:
        if next(calls) % 50 == 0 and not workers.worker.stopping:
            clock.jump(400)  # a row that could not be claimed is tried again after some minutes
        if not set(workers.statuses(entity).values()) & {"unclaimed", "claimed"}:
            workers.worker.stop()

    faults = FaultInjection(
        workers.engine, db_url, seed=SEED, wanted=wanted, when_over=stop_when_handled
    )

    def handle(task: Task) -> None:
        workers.note(task)
        faults.begin()

    def book(session: Session, invoice: Invoice) -> None:
        faults.begin()
        session.add(Entry(name=invoice.name))

    queue = workers.queue(entity, book if transactional else handle, transactional=transactional)
    level = {"isolation_level": "AUTOCOMMIT"} if kind == "AUTOCOMMIT" else {}
    bind = workers.engine.execution_options(**level)
    concurrency = 2 if workers.awaits else 1
    worker = workers.make(
        queue, bind=bind, owner="w", limit=3, concurrency=concurrency, reap_every=None
    )
    with faults:
        workers.run(worker)

    rows = workers.rows(entity)
    failed = [str(error) for status, _, error in rows.values() if status == "failed"]
    assert {row[0] for row in rows.values()} <= {"done", "failed"}
    if transactional:
        assert (ledger.entries(workers.plain), failed) == (names, [])
    else:
        assert sorted(workers.handled) == names
        assert all("the finish was refused" in error for error in failed)
        refused = sum(count for (what, _), count in faults.seen.items() if what == REFUSED)
        assert 2 * len(failed) <= refused  # together with others, and again alone
    if full:
        assert set(faults.seen) == set(faults.kinds)


# Which errors are waited out


class DatabaseError(Exception):
    """An error of a driver, by the name that PEP 249 gives it."""


def with_state(state: str) -> DatabaseError:
    error = DatabaseError("told by psycopg")
    error.sqlstate = state  # type: ignore[attr-defined]  # as psycopg sets it
    return error


def unwrapped(alias: str) -> Exception:
    """What an application's handle_error listener may raise: the driver's own exception."""
    cause = transient(alias)
    error: Exception = type("DatabaseError", (type(cause),), dict(vars(cause)))(*cause.args)
    return error


def read_only(alias: str) -> Exception:
    told = {"postgresql": with_state("25006"), "mysql": DatabaseError(1836, "")}
    return OperationalError(
        "UPDATE", {}, told.get(alias, DatabaseError(1290, "--read-only option"))
    )


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize(("error", "times"), [(unwrapped, 1), (read_only, 2)])
def test_a_worker_waits_out_what_passes(
    workers: Workers, db_alias: str, error: Callable[[str], Exception], times: int
) -> None:
    """It leaves the connection of a read-only server: the next may lead to the new primary."""
    invalidated: list[object] = []

    def fail(connection: Any) -> None:
        raise error(db_alias)

    with heard(workers.engine, "invalidate", lambda *args: invalidated.append(args)):
        drained_with(workers, faults_in(workers.engine, Faults(4, fail, times=times)))

    assert bool(invalidated) is (error is read_only)


def starting_up(dbapi: Any) -> Exception:
    error: Exception = dbapi.Error("the database system is starting up")
    return error if hasattr(dbapi, "asyncpg") else refused_by_network(dbapi)


def ends_amid_the_login(dbapi: Any) -> Exception:
    """PyMySQL calls it an InternalError; seen when a member of a group was killed."""
    error: Exception = dbapi.InternalError("Packet sequence number wrong")
    return refused_by_network(dbapi) if hasattr(dbapi, "asyncpg") else error


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("moment", ["before the start", "while a job is handled"])
@pytest.mark.parametrize("refusal", [refused_by_network, starting_up, ends_amid_the_login])
def test_a_worker_waits_for_a_server_that_is_away(
    workers: Workers, moment: str, refusal: Callable[[Any], Exception]
) -> None:
    workers.add("a", "b")
    left = [1, 2, 3]
    away = threading.Event()
    if moment == "before the start" and refusal is not ends_amid_the_login:
        away.set()

    def connect(dialect: Any, *_: Any) -> None:
        if away.is_set() and left:
            left.pop()
            raise refusal(dialect.loaded_dbapi)

    def handle(task: Task) -> None:
        workers.note(task)
        if not away.is_set():
            workers.engine.dispose(close=False)
            away.set()

    workers.engine.dispose(close=not workers.awaits)
    with heard(workers.engine, "do_connect", connect):
        workers.drain(Task, handle)

    assert (workers.handled, left) == (["a", "b"], [])
    assert set(workers.statuses().values()) == {"done"}


def test_a_worker_waits_for_a_pool_whose_connections_are_all_in_use(
    threads: Workers, db_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    threads.add("a", "b")
    small = make_engine(db_url, pool_size=2, max_overflow=0, pool_timeout=0.2)

    def handle(task: Task) -> None:
        threads.note(task)
        for held in (small.connect(), small.connect()):
            threading.Timer(0.5, held.close).start()

    threads.drain(threads.queue(Task, handle), bind=small, owner="w")
    small.dispose()

    assert threads.handled == ["a", "b"]
    assert set(threads.statuses().values()) == {"done"}
    waits = [record for record in caplog.records if "QueuePool limit" in record.getMessage()]
    assert waits[0].levelname == "WARNING"
    assert {record.levelname for record in caplog.records} <= {"WARNING", "INFO"}


@pytest.mark.only_on(*SERVERS)
def test_a_worker_that_may_not_write_ends_at_once(threads: Workers, clock: Clock) -> None:
    threads.add("a")
    began = clock()

    with (
        restricted_user(threads.plain, "SELECT") as theirs,
        pytest.raises(DBAPIError, match="denied"),
    ):
        threads.run(threads.make(Task, bind=theirs, owner="w"))

    assert clock() < began + 10


@ANYWHERE
def test_a_worker_whose_table_is_missing_ends_at_once(workers: Workers) -> None:
    ledger.Base.metadata.drop_all(workers.plain)

    with pytest.raises(DBAPIError, match=r"(?i)exist|no such table"):
        workers.run(workers.make(workers.queue(Invoice), owner="w"))
