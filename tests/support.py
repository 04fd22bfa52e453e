"""What many tests share: strategies, engines, empty tables, statements seen."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import compress
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    MetaData,
    NullPool,
    QueuePool,
    create_engine,
    delete,
    event,
    exists,
    literal_column,
    make_url,
    select,
)
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

#: Which strategies run where; every contract test runs on each pair.
STRATEGIES = {
    "sqlite": ("compare_and_set",),
    "postgresql": ("skip_locked", "candidates", "held"),
    "mysql": ("skip_locked", "candidates", "update_then_select", "held"),
    "mariadb": ("skip_locked", "candidates", "update_then_select", "held"),
}

ALL_STRATEGIES = sorted({name for names in STRATEGIES.values() for name in names})

#: The strategies that write status, owner and time when they claim.
MARKING = ("skip_locked", "candidates", "update_then_select", "compare_and_set")

#: The databases behind a server, with row locks and several writers.
SERVERS = ("postgresql", "mysql", "mariadb")

#: What the fixture new_session gives.
Sessions = Callable[..., Session]

#: The real one; see tests.clock.
_monotonic = time.monotonic

#: Seconds that a statement waits for another's lock before it fails.
LOCK_WAIT = 10

#: Connect without TLS. PyMySQL reads all certificates of the machine for each connection with TLS:
#: 25 ms of a test's 40.
PLAIN: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"sslmode": "allow"},
    "mysql": {"ssl_disabled": True},
    "mariadb": {"ssl_disabled": True},
}


def make_engine(
    url: URL | str,
    *,
    tls: bool = False,
    durable: bool = False,
    lock_wait: int = LOCK_WAIT,
    **options: Any,
) -> Engine:
    """Create an engine whose statements wait for locks, but not for long.

    Args:
        tls: connect as the driver does by default, which is with TLS if the server offers it.
        durable: a server that crashes has what was committed.
        lock_wait: seconds.
    """
    url = make_url(url)
    alias = url.get_backend_name()
    plain = {} if tls or _names_tls(url) else PLAIN[alias]
    connect = _waiting(alias, lock_wait, durable=durable)
    begin = AUTOCOMMIT_OFF if alias == "sqlite" and SQLITE["begin"] == "autocommit" else {}
    engine = create_engine(url, connect_args={**connect, **plain, **begin}, **options)
    return with_begin(engine) if alias == "sqlite" and SQLITE["begin"] == "listener" else engine


def _waiting(alias: str, seconds: int, *, durable: bool) -> dict[str, Any]:
    if alias == "sqlite":
        return {"timeout": seconds}
    if alias == "postgresql":
        # Tests check who gets which row, not what a power cut leaves.
        commits = "" if durable else " -c synchronous_commit=off"
        return {"options": f"-c lock_timeout={seconds}s{commits}"}
    return {"init_command": f"SET innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}"}


#: Who begins the transactions of SQLite in this run, as --sqlite-begin says; else the driver.
SQLITE = {"begin": "driver"}

#: What SQLAlchemy's page on SQLite recommends from Python 3.12 on: a transaction is always open.
AUTOCOMMIT_OFF: dict[str, Any] = {"autocommit": False}


def with_begin(engine: Engine) -> Engine:
    """Have SQLAlchemy begin SQLite's transactions, as its page on SQLite recommends."""

    @event.listens_for(engine, "connect")
    def leave_it_to_us(driver: Any, record: Any) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.connection.cursor().execute("BEGIN")  # which no test counts

    return engine


def _names_tls(url: URL) -> bool:
    """Tell whether the user's URL says how to connect with TLS."""
    return any(name.startswith("ssl") for name in url.query)


def begin_deferred(connection: Connection) -> None:
    """Begin on SQLite, unless a transaction is open: its driver begins none before a SAVEPOINT."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite" and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")


def as_new(engine: Engine) -> Engine:
    """Return the engine; its connections forget the settings of the last test.

    A new connection to PostgreSQL reads its catalogs anew, which took a quarter of a test's time.
    """
    pool = engine.pool
    if engine.dialect.name != "postgresql" or not isinstance(pool, QueuePool):
        engine.dispose()
        return engine
    kept = [engine.raw_connection() for _ in range(pool.checkedin())]
    try:
        for connection in kept:
            driver: Any = connection.driver_connection
            driver.rollback()
            driver.autocommit = True
            driver.cursor().execute("DISCARD ALL")
            driver.autocommit = False
    except engine.dialect.loaded_dbapi.Error:  # the last test has cut a connection
        engine.dispose()
    for connection in kept:
        connection.close()
    return engine


def with_empty_tables(engine: Engine, metadata: MetaData) -> Engine:
    """Return the engine; create the tables that are missing, and delete all rows."""
    _refuse_look_alikes(engine, metadata)
    try:
        _delete_rows(engine, metadata)
    except DBAPIError:
        metadata.create_all(engine)
        _delete_rows(engine, metadata)
    return engine


#: The metadata of each table by its database and its name.
_OWNERS: dict[tuple[str, str], MetaData] = {}


def _refuse_look_alikes(engine: Engine, metadata: MetaData) -> None:
    """Refuse a table that other tests have in this database, with other columns."""
    for name in metadata.tables:
        if _OWNERS.setdefault((str(engine.url), name), metadata) is not metadata:
            raise AssertionError(f"other tests have a table {name!r} in this database: rename it")


def _delete_rows(engine: Engine, metadata: MetaData) -> None:
    """Delete from the tables that have rows; to ask which costs less than a DELETE for each."""
    tables = metadata.sorted_tables[::-1]
    with engine.begin() as connection:
        with_rows = connection.execute(_which_have_rows(metadata)).one()
        for table in compress(tables, with_rows):
            connection.execute(delete(table))


@cache
def _which_have_rows(metadata: MetaData) -> Executable:
    """Ask each table, the referring ones first, whether it has rows."""
    tables = metadata.sorted_tables[::-1]
    return select(*(exists(select(literal_column("1")).select_from(table)) for table in tables))


def impatient(engine: Engine) -> Engine:
    """Return an engine that SQLite refuses at once while another connection writes."""
    if engine.url.get_backend_name() != "sqlite":
        return engine
    return create_engine(engine.url, connect_args={"timeout": 0}, poolclass=NullPool)


@contextmanager
def heard(target: Any, name: str, listener: Callable[..., Any], **options: Any) -> Iterator[None]:
    """Listen to an event of an engine, a connection or a class until the block ends."""
    event.listen(target, name, listener, **options)
    try:
        yield
    finally:
        event.remove(target, name, listener)


def only_seeing(session: Session, entity: type[Any], criterion: Any) -> None:
    """Have a session see some rows only, as applications tell tenants apart by a hook."""

    @event.listens_for(session, "do_orm_execute")
    def narrow(state: ORMExecuteState) -> None:
        ours = with_loader_criteria(entity, criterion)
        state.statement = state.statement.options(ours)


@contextmanager
def statements_seen(engine: Engine | type[Engine]) -> Iterator[list[str]]:
    """Collect the statements that an engine runs, or any engine."""
    seen: list[str] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        seen.append(" ".join(statement.split()))

    with heard(engine, "before_cursor_execute", see):
        yield seen


#: The connections to a database but our own, and how one of them is ended.
OTHERS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL {}",
    ),
}
OTHERS["mariadb"] = OTHERS["mysql"]


def cut_connections(
    url: URL, alias: str, chosen: Callable[[list[int]], list[int]] = lambda numbers: numbers
) -> None:
    """End every connection to a database but our own, or those that are chosen by their numbers."""
    listed, ends = OTHERS[alias]
    engine = make_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        numbers = sorted(connection.exec_driver_sql(listed).scalars())
        for number in chosen(numbers):
            connection.exec_driver_sql(ends.format(number))


def until(true: Callable[[], object], seconds: float = 30) -> None:
    """Wait for what other threads or processes do."""
    deadline = _monotonic() + seconds
    while not true():
        assert _monotonic() < deadline
        threading.Event().wait(0.02)


class Translated(Exception):
    """The exception of an application that has no use for SQLAlchemy's."""


@contextmanager
def log_kept() -> Iterator[None]:
    """Let a command set up the log of this process; afterwards it is as it was before."""
    root, handlers, level = logging.root, logging.root.handlers[:], logging.root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)  # by this call, each logger forgets which levels are on


@contextmanager
def translating_errors(engine: Engine) -> Iterator[None]:
    """Have a handle_error listener raise an exception of its own, as oslo.db does."""

    def translate(context: ExceptionContext) -> Exception:
        return Translated(str(context.original_exception))

    with heard(engine, "handle_error", translate, retval=True):
        yield


@contextmanager
def variables_hidden(engine: Engine) -> Iterator[None]:
    """Have the server lack the table of its variables, as a look-alike of MySQL may."""
    table = re.compile(r"_schema\.global_variables", re.IGNORECASE)

    def hide(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return table.sub("_schema.no_such_table", statement), parameters

    with heard(engine, "before_cursor_execute", hide, retval=True):
        yield


def is_like(text: str, parts: str) -> bool:
    """Tell whether a text begins with these parts, in their order; ".." stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in parts.split(".. "))
    return re.match(pattern, text, re.DOTALL) is not None
