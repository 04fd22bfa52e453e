"""Connections outside the pool, the driver's own connection below SQLAlchemy's, and its errors."""

from __future__ import annotations

import os
import selectors
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, Engine, Pool, Table, event
from sqlalchemy.engine import Dialect
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidRequestError, OperationalError


def dedicated_connection(engine: Engine) -> Connection:
    """Connect as the engine does, without its pool: in AUTOCOMMIT, and really closed at its end.

    Not ``engine.connect()``: where a session has the pool's only connection, its
    thread would wait for a second connection until the pool's timeout.
    """
    apart = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    with Connecting(engine):
        connection = apart.connect()
    try:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        driver = driver_connection(connection)
        if getattr(driver, "autocommit", None) is False:  # SQLite's: a transaction is always open
            driver.autocommit = True
        connection.detach()
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return connection


@contextmanager
def connected_apart(engine: Engine) -> Iterator[Connection]:
    """Give such a connection for a block, and close it at once: close() would roll back first."""
    connection = dedicated_connection(engine)
    # After an error the Connection may have lost it without closing it.
    driver = connection.connection.dbapi_connection
    try:
        yield connection
    finally:
        close_dedicated(connection, driver)


def close_dedicated(connection: Connection, driver: Any) -> None:
    """Close such a connection, whose driver's is given, as it was when it was new."""
    if connection.closed:
        return
    dialect = connection.dialect
    with suppress(*connect_errors(dialect), OSError):  # closed already
        dialect.do_terminate(driver)
    if not connection.invalidated:
        connection.invalidate()
    connection.close()


def driver_connection(connection: Connection) -> Any:
    """Return the driver's own connection object, below any async adapter."""
    pooled = connection.connection
    assert pooled.dbapi_connection is not None
    # pooled.driver_connection is None once the connection is detached from its pool.
    return connection.dialect.get_driver_connection(pooled.dbapi_connection)


def file_number(driver: Any) -> int | None:
    """Return the file number of a driver's socket; None where the driver does not tell."""
    # psycopg 2 and 3, mysqlclient; pg8000; PyMySQL.
    for holder in (driver, getattr(driver, "_usock", None), getattr(driver, "_sock", None)):
        ask = getattr(holder, "fileno", None)
        number = ask() if callable(ask) else None
        if isinstance(number, int) and number >= 0:
            return number
    # asyncpg; asyncmy and aiomysql.
    for transport in (getattr(driver, "_transport", None), getattr(driver, "_writer", None)):
        if transport is not None:
            return file_number(transport.get_extra_info("socket"))
    return None


def connect_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    """Return the exceptions that a driver raises where it cannot connect.

    asyncpg lets the network's errors out, and before SQLAlchemy 2.1 its own too.
    """
    dbapi: Any = dialect.loaded_dbapi
    asyncpg = getattr(dbapi, "asyncpg", None)
    own = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) if asyncpg is not None else ()
    return (dbapi.Error, *own)


class Connecting:
    """Raise a driver's own errors as OperationalError: the connection could not be made.

    A class, since a generator would cost each transaction four more calls.
    """

    def __init__(self, bind: Engine | Connection) -> None:
        self._bind = bind

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if isinstance(error, connect_errors(self._bind.dialect)):
            raise OperationalError(None, None, error) from error
        # asyncpg's errors have no class of PEP 249 beneath Error.
        without_class = not isinstance(error, OperationalError | InterfaceError)
        if isinstance(error, DBAPIError) and without_class and error.statement is None:
            raise OperationalError(None, None, error.orig or error) from error


def autocommit_of(driver: Any) -> bool | None:
    """Ask a driver's connection whether it is in AUTOCOMMIT; None: it does not tell."""
    state = getattr(driver, "autocommit", None)
    if isinstance(state, int):  # a bool, too
        return bool(state)
    asked = getattr(driver, "get_autocommit", None)
    state = asked() if callable(asked) else asked
    return bool(state) if isinstance(state, int) else None


def as_value(dialect: Dialect, quoted: str) -> str:
    """Return a quoted name as the value of a parameter, where no driver halves ``%%``."""
    doubled = "%%" in dialect.identifier_preparer.quote("%")
    return quoted.replace("%%", "%") if doubled else quoted


def qualified(connection: Connection, table: Table) -> str:
    """Return a table's name as the server is to see it, quoted, with its schema."""
    quote = connection.dialect.identifier_preparer.quote
    schema = connection.schema_for_object(table)
    name = f"{quote(schema)}.{quote(table.name)}" if schema else quote(table.name)
    return as_value(connection.dialect, name)


def listen_to(
    connection: Connection, name: str, function: Callable[..., Any], **options: Any
) -> None:
    """Listen to an event of one Connection, once; the options are those of ``event.listen``.

    If the engine has execution options, ``event.listen`` of SQLAlchemy 2.0.30 refuses its
    connections, though they have events.
    """
    try:
        event.listen(connection, name, function, **options)
    except InvalidRequestError:
        _EventKey(connection, name, function, connection).listen(**options)


def driver_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of drivers behind an error.

    An application's handle_error listener may raise the driver's own exception, or another one
    that it caused.
    """
    seen: list[BaseException] = []
    chain: list[tuple[BaseException | None, bool]] = [(error, False)]
    while chain:
        cause, is_beneath = chain.pop(0)
        if cause is None or any(cause is each for each in seen):
            continue
        seen.append(cause)
        if isinstance(cause, DBAPIError):
            chain.append((cause.orig, True))
        elif is_beneath or is_of_driver(cause):
            yield cause
        chain.append((cause.__cause__, is_beneath))


def is_of_driver(error: BaseException) -> bool:
    """Tell whether an exception is of a driver, by PEP 249's names or a SQLSTATE."""
    names = {base.__name__ for base in type(error).__mro__}
    return "DatabaseError" in names or getattr(error, "sqlstate", None) is not None


def is_integrity_error(error: BaseException) -> bool:
    """Tell whether a constraint refuses a row."""
    return any(
        base.__name__ == "IntegrityError"
        for cause in (error, *driver_errors(error))
        for base in type(cause).__mro__
    )


R = TypeVar("R")


class Calls:
    """Calls what uses connections of one engine, from any thread, by one thread at a time.

    A synchronous driver may be called anywhere. For an async driver an event loop runs while
    something is called. So plain threads keep a lock alive also while the application's event loop
    is busy with something else.
    """

    def __init__(self, engine: Engine) -> None:
        self._loop: Any = None
        if engine.dialect.is_async:
            import asyncio

            # Not epoll, whose state a forked child would share; nor an application's uvloop.
            poll: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)
            self._loop = asyncio.SelectorEventLoop(poll())

    def run(self, work: Callable[[], R]) -> R:
        """Call something, and return its result."""
        if self._loop is None:
            return work()
        from sqlalchemy.util import greenlet_spawn

        if _a_loop_runs_here():  # which cannot run another one inside
            with ThreadPoolExecutor(1) as apart:
                return apart.submit(self.run, work).result()
        done: R = self._loop.run_until_complete(greenlet_spawn(work))
        return done

    def close(self) -> None:
        """Close the event loop; nothing is called any more."""
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()


def call_for(engine: Engine, work: Callable[[], R]) -> R:
    """Call something that opens a connection of this engine, and closes it again."""
    with closing(Calls(engine)) as calls:
        return calls.run(work)


def _a_loop_runs_here() -> bool:
    from asyncio import get_running_loop

    with suppress(RuntimeError):
        return bool(get_running_loop())
    return False


class Joined(Protocol):
    """A connection that may have several users."""

    def join(self) -> bool:
        """Count one more user, who is to close it, too; False if it is closed or lost."""
        ...


W = TypeVar("W", bound=Joined)


@dataclass
class _Place(Generic[W]):
    mutex: Lock = field(default_factory=Lock)
    connection: W | None = None


class SharedConnections(Generic[W]):
    """Connections that several users have in common: one for each pool."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._places: WeakKeyDictionary[Pool, _Place[W]] = WeakKeyDictionary()

    def take(self, pool: Pool, connect: Callable[[], W]) -> W:
        """Return the connection of a pool, for a user to close; connect if there is none."""
        with self._mutex:
            place = self._places.setdefault(pool, _Place())
        with place.mutex:
            if place.connection is None or not place.connection.join():
                place.connection = connect()
            return place.connection


class LeftToParent(Protocol):
    """Something open that a fork copies, and that stays the parent's."""

    def leave_to_parent(self) -> None:
        """Close the child's copy without a word to anybody."""


_open: WeakSet[LeftToParent] = WeakSet()


def leave_to_parent_after_fork(handle: LeftToParent) -> None:
    """Have each forked child close its copy of a handle, of a lock that is its parent's.

    A child that kept it open would keep its dead parent's lock alive.
    """
    _open.add(handle)


def _leave_all_to_parent() -> None:
    for handle in list(_open):
        handle.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


# -- what runs right after the outermost COMMIT or ROLLBACK of a connection -------
#
# For what a server session keeps beyond its transaction, such as locks: they must be given
# back when the transaction has ended and not before, else others would act on rows that are
# not committed yet.
#
# Session.after_commit will not do: a session that joined an outer transaction fires it for
# a savepoint. The event "commit" of Connection and Engine comes before the COMMIT. At the
# right moment SQLAlchemy only calls commit() of the connection that the pool handed out, so
# we wrap that. COMMIT and ROLLBACK in SQL of the caller's own are not noticed; what they
# leave behind is cleaned up before the pool hands the connection out again.


_INFO = "sa_jobqueue.databases.after_commit"


Hooks = TypeVar("Hooks", bound="TransactionHooks")


class TransactionHooks(ABC):
    """What one part of the library does when a connection's transactions end.

    The methods get the driver's own connection, below the pool's.
    """

    def will_commit(self, driver: Any, errors: type[Exception]) -> bool:
        """Tell, before a COMMIT, whether the server will really commit."""
        return True

    @abstractmethod
    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Act on the end of a transaction; none is open now."""

    @abstractmethod
    def end_interrupted(self) -> None:
        """Note that COMMIT or ROLLBACK raised: nobody knows whether the server did it."""

    @abstractmethod
    def after_end_failed(self, error: Exception) -> None:
        """Log that :meth:`after_end` failed; the transaction itself has ended well."""

    @abstractmethod
    def on_return(self, driver: Any) -> None:
        """Leave nothing behind: the connection goes back to its pool."""


def hooks_of(connection: Connection, kind: type[Hooks], make: Callable[[], Hooks]) -> Hooks:
    """Return the hooks of a class that a connection has until it is back in its pool.

    Args:
        make: makes them where the connection has none yet.
    """
    added: dict[type, Any] = connection.info.setdefault(_INFO, {})
    if kind not in added:
        added[kind] = make()
        if len(added) == 1:
            _wrap_ends(connection, added)
            _watch_returns()
    found: Hooks = added[kind]
    return found


def _wrap_ends(connection: Connection, added: dict[type, Any]) -> None:
    pooled: Any = connection.connection
    errors = connection.dialect.loaded_dbapi.Error
    for name in ("commit", "rollback"):
        vars(pooled)[name] = _wrapped(pooled, name, added, errors)


def _wrapped(
    pooled: Any, name: str, added: dict[type, Any], errors: type[Exception]
) -> Callable[[], None]:
    """Return commit or rollback of a pooled connection, with the hooks called after it."""
    weak = ref(pooled)  # no cycle: a dropped connection must return to its pool at once

    def end() -> None:
        driver = weak().dbapi_connection  # type: ignore[union-attr]  # it runs its own method
        called = list(added.values())
        try:
            committing = [
                name == "commit" and hooks.will_commit(driver, errors) for hooks in called
            ]
            getattr(driver, name)()
        except BaseException:
            for hooks in called:
                hooks.end_interrupted()
            raise
        for hooks, committed in zip(called, committing, strict=True):
            try:
                hooks.after_end(driver, committed=committed)
            except errors as error:
                hooks.after_end_failed(error)

    return end


def _watch_returns() -> None:
    """Have everything given back before a connection is handed out again.

    Listens to every pool: after Engine.dispose() a connection still belongs to the
    engine's previous pool.
    """
    if not event.contains(Pool, "reset", _on_reset):
        event.listen(Pool, "reset", _on_reset)


def _on_reset(driver: Any, record: Any, state: Any) -> None:
    added = record.info.pop(_INFO, None) if record is not None else None
    if added is None or state.terminate_only or not state.asyncio_safe:
        return
    for hooks in added.values():
        hooks.on_return(driver)


def fetch_all(driver: Any, statement: str) -> Sequence[Any]:
    """Run a statement on a driver's own connection, and return its rows."""
    cursor = driver.cursor()
    cursor.execute(statement)
    found = list(cursor.fetchall())
    cursor.close()
    return found
