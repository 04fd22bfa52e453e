"""A deadline on each call to the database: connecting, a statement, a COMMIT, a ping of the pool.

::

    deadlines = Deadlines(engine, timedelta(seconds=30))
    with deadlines:
        ...         # calls of this thread, and of threads that it starts, have the deadline

An established connection may go silent while new ones work: a middlebox has forgotten it, or a
failover keeps its socket open. The driver then waits for ever, and tells nobody. So a thread
watches the calls. It shuts the socket of a late call down: the driver raises the error of a
connection that broke, and SQLAlchemy replaces the pool's connections. On SQLite it interrupts the
statement. The thread acts only while the call is under way, never on a connection that is back in
the pool.

The calls are those of the engine's dialect, which are all that SQLAlchemy sends. Otherwise, what a
driver is asked directly has no deadline. Only a new connection has one until its first call: the
listeners of "connect", SQLAlchemy's own among them, ask the driver. The connections of
``create_engine(creator=)`` have none before their first call.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet, ref

from sqlalchemy import Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from ..ages import duration_text
from ..databases import database_of, database_of_dialect
from ..databases.connections import call_for, connect_errors, connected_apart, file_number
from .named import name_of_records, records_named

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: What a dialect sends over a connection, with how to find the connection among its arguments.
_OF_CURSOR = ("do_execute", "do_executemany", "do_execute_no_params")
_OF_CONNECTION = {
    "do_close": "the close of a connection",  # asyncpg waits for a farewell
    "do_commit": "a COMMIT",
    "do_ping": "a ping of the pool",
    "do_rollback": "a ROLLBACK",
    "reset_isolation_level": "a statement",
    "set_isolation_level": "a statement",
}

#: What the driver's error of a call that was cut off tells.
LATE = "sa_jobqueue has closed the connection: the call has taken longer than the worker's deadline"

#: How long a call may take at least, in seconds, also after the time for all calls is over.
LEAST = 1.0

#: How often a thread that connects looks at its time, in seconds.
LOOK_EVERY = 0.25

#: After so many deadlines a call that could not be freed is hopeless.
HOPELESS = 3

_current: ContextVar[Deadlines | None] = ContextVar("sa_jobqueue_deadlines", default=None)


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is under way.

    Attributes:
        dialect: who calls: a session may use several engines.
        driver: returns its connection; None: the connection is gone.
        began: by time.monotonic().
        socket: its file number and that file's identity, once the call has taken some time.
        is_seen: the watching thread has noted the socket.
        was_cut: the thread has shut the connection down.
        is_over: the call has returned; the connection is no longer ours.
        database: whose it is, for the log.
    """

    dialect: Dialect
    driver: Callable[[], Any]
    what: str
    began: float = field(default_factory=time.monotonic)
    socket: tuple[int, int, int] | None = None
    is_seen: bool = False
    was_cut: bool = False
    is_over: bool = False
    database: str | None = field(default_factory=name_of_records)


class Deadlines:
    """The calls of one worker to its databases, and the thread that watches them.

    Args:
        engine: whose dialect calls; None: :meth:`watch` names it.
        longest: how long a call may take; a statement that may wait for a lock, perhaps longer.
        give_up: called once when a call could not be freed within HOPELESS deadlines, in the
            watching thread, with what the call does.
    """

    def __init__(
        self,
        engine: Engine | None,
        longest: timedelta,
        give_up: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._engines: dict[Dialect, Engine] = {}
        self._give_up = give_up
        self._calls: set[_Call] = set()
        self._new: dict[int, _Call] = {}  # by the identity of the driver's connection
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread
        self._token: Token[Deadlines | None] | None = None
        self.longest = self._to_connect = longest
        self._end_at = math.inf
        if engine is not None:
            self.watch(engine)

    def watch(self, engine: Engine) -> None:
        """Watch the calls of an engine."""
        self._engines[engine.dialect] = engine
        _watch(engine.dialect)

    def __enter__(self) -> Deadlines:
        self._over.clear()
        self._token = _current.set(self)
        self._thread = threading.Thread(
            target=self._watch, name="sa_jobqueue deadlines", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(1)
        if self._token is not None:
            _current.reset(self._token)

    def never_below(self, lock_timeout: timedelta | None) -> None:
        """Let calls take longer than a statement may wait for a lock; None: it has no limit."""
        if lock_timeout is not None:
            self.longest = max(self.longest, lock_timeout + timedelta(seconds=2))

    def end_at(self, moment: float) -> None:
        """Let no call last beyond a time of time.monotonic(); a later call has a second."""
        self._end_at = moment

    def is_late(self, began: float, *, connects: bool = False) -> bool:
        """Tell whether a call has taken too long."""
        now, longest = time.monotonic(), self._to_connect if connects else self.longest
        return now - began >= longest.total_seconds() or now >= max(self._end_at, began + LEAST)

    @property
    def stuck(self) -> str | None:
        """What a call does that its deadline could not free; None: there is no such call."""
        late = time.monotonic() - 2 * self.longest.total_seconds()
        return next((call.what for call in list(self._calls) if call.began < late), None)

    def call(self, dialect: Dialect, connection: Any, what: str, work: Callable[[], R]) -> R:
        """Call `work`, which uses that connection, and watch it meanwhile."""
        call = _Call(dialect, partial(dialect.get_driver_connection, connection), what)
        if self._new:
            with self._mutex:
                if (new := self._new.pop(id(call.driver()), None)) is not None:
                    new.is_over = True
        self._calls.add(call)
        try:
            return work()
        except Exception as error:
            if call.was_cut:
                _free_file(dialect, connection)
                error.add_note(LATE)
            raise
        finally:
            call.is_over = True
            if call.is_seen:  # the watching thread may be about to cut it off
                with self._mutex:
                    pass
            self._calls.discard(call)

    def watch_new(self, dialect: Dialect, connection: Any) -> None:
        """Watch a new connection until its first call."""
        driver = dialect.get_driver_connection(connection)
        with self._mutex:
            self._new[id(driver)] = _Call(dialect, ref(driver), "the start of a connection")

    # -- the watching thread --------------------------------------------

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.longest.total_seconds() / 4)):
            longest, now = self.longest.total_seconds(), time.monotonic()
            for call in self._slow(now):
                age = now - call.began
                # The connection may just have been closed, and its driver then answers nothing.
                with suppress(*connect_errors(call.dialect), ValueError):
                    if not call.is_seen:
                        self._see(call)
                    elif self.is_late(call.began) and not call.was_cut:
                        self._cut(call)
                if age >= HOPELESS * longest and call.was_cut and call in self._calls:
                    self._over.set()
                    self._give_up(call.what)

    def _slow(self, now: float) -> list[_Call]:
        """Return the calls that take longer than a tenth of a second."""
        with self._mutex:
            self._new = {key: new for key, new in self._new.items() if new.driver() is not None}
            watched = (*self._calls, *self._new.values())
        return [call for call in watched if now - call.began > 0.1]

    def _see(self, call: _Call) -> None:
        with self._mutex:
            call.is_seen = True
            if not call.is_over:
                call.socket = _socket_of(call.driver())

    def _cut(self, call: _Call) -> None:
        with self._mutex:
            if call.is_over:
                return
            call.was_cut = True
            age = timedelta(seconds=time.monotonic() - call.began)
            database = database_of_dialect(call.dialect)
            process = database.told_backend(call.driver())
            if database.has_network:
                _shut_down(call)
            else:
                _interrupt(call.driver())
        with records_named(call.database):
            log.warning(
                "%s has taken longer than %s; the worker closes its connection and tries again",
                call.what,
                duration_text(age),
            )
        if process is not None and (engine := self._engines.get(call.dialect)) is not None:
            end = partial(self._end_session, engine, call, process)
            threading.Thread(target=end, daemon=True).start()

    def _end_session(self, engine: Engine, call: _Call, process: int) -> None:
        """End the session at the server, which may still hold the locks of its rows.

        New connections may be silent, too: then it is tried again until the worker ends.
        """
        _current.set(self)  # in this thread

        def end() -> None:
            with connected_apart(engine) as connection:
                database = database_of(connection)
                if not database.through_pooler(connection):
                    age = time.monotonic() - call.began - LEAST  # the server's clock began later
                    database.end_session(connection, process, timedelta(seconds=age))

        while True:
            try:
                return call_for(engine, end)
            except Exception as error:  # whatever it is, the server ends the session some time
                broke = isinstance(error, DBAPIError) and (
                    error.connection_invalidated or error.statement is None
                )
                if not broke or self._over.wait(1):
                    text = "the session of a closed connection is left to the server: %s"
                    return log.info(text, error)


def lift_deadline() -> None:
    """Let the calls of the current context take as long as they like: they are a handler's."""
    _current.set(None)


@contextmanager
def no_deadline() -> Iterator[None]:
    """Let the calls of a block take as long as they like: they are the application's."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


# -- the calls of a dialect ---------------------------------------------

_watched: WeakSet[Dialect] = WeakSet()


def _watch(dialect: Dialect) -> None:
    """Have the calls of a dialect watched, in a context that has a deadline."""
    if dialect in _watched:
        return
    _watched.add(dialect)
    own: Any = dialect
    for name in _OF_CURSOR:
        setattr(own, name, partial(_call_on_cursor, dialect, getattr(own, name)))
    for name, what in _OF_CONNECTION.items():
        setattr(own, name, partial(_call_on_connection, dialect, what, getattr(own, name)))
    own.is_disconnect = partial(_is_disconnect, own.is_disconnect)
    if database_of_dialect(dialect).has_network:
        own.connect = partial(_connect, dialect, own.connect)


def _call_on_cursor(dialect: Dialect, work: Callable[..., Any], *arguments: Any) -> Any:
    deadlines = _current.get()
    if deadlines is not None:
        call = partial(work, *arguments)
        return deadlines.call(dialect, _connection_of(arguments[-1]), "a statement", call)
    try:
        return work(*arguments)
    except BaseException as error:
        in_thread = dialect.is_async and not database_of_dialect(dialect).has_network
        if in_thread and not isinstance(error, Exception):
            # A handler was cancelled, and its statement goes on in aiosqlite's thread: it would
            # keep the file locked.
            connection = _connection_of(arguments[-1])
            _interrupt(dialect.get_driver_connection(connection))
            _free_file(dialect, connection)
        raise


def _free_file(dialect: Dialect, connection: Any) -> None:
    """Have SQLite unlock its file, which a close does only once no cursor is left."""
    if not database_of_dialect(dialect).has_network:
        with suppress(*connect_errors(dialect)):  # the connection is closed
            connection.rollback()


def _connection_of(context: Any) -> Any:
    """Return the connection of an execution, as the dialect knows it."""
    return context.root_connection.connection.dbapi_connection


def _call_on_connection(
    dialect: Dialect, what: str, work: Callable[..., Any], connection: Any, *arguments: Any
) -> Any:
    deadlines = _current.get()
    if deadlines is None:
        return work(connection, *arguments)
    within = getattr(connection, "dbapi_connection", connection)  # a pool gives its own
    call = partial(work, connection, *arguments)
    return deadlines.call(dialect, within, what, call)


def _is_disconnect(ask: Callable[..., bool], error: Any, *arguments: Any) -> bool:
    return LATE in getattr(error, "__notes__", ()) or ask(error, *arguments)


def _connect(dialect: Dialect, connect: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Connect in a thread of its own, or a task, which is left alone if it takes too long."""
    deadlines = _current.get()
    if deadlines is None:
        return connect(*args, **options)
    work, began = partial(connect, *args, **options), time.monotonic()
    late: Any = dialect.loaded_dbapi
    try:
        made = _within(dialect, work, lambda: deadlines.is_late(began, connects=True))
    except TimeoutError as error:
        lasted = timedelta(seconds=time.monotonic() - began)
        text = f"no connection was made within {duration_text(lasted)}"
        raise late.OperationalError(text) from error
    deadlines.watch_new(dialect, made)
    return made


def _within(dialect: Dialect, work: Callable[[], Any], is_late: Callable[[], bool]) -> Any:
    """Return what `work` returns; raise TimeoutError as soon as it is late."""
    if dialect.is_async:
        from sqlalchemy.util import await_only

        return await_only(_awaited_within(work, is_late))
    made: Future[Any] = Future()

    def connect() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=connect, name="sa_jobqueue connects", daemon=True).start()
    while not wait([made], LOOK_EVERY).done:
        if is_late():
            made.add_done_callback(_close)  # if there is something to close one day
            raise TimeoutError
    return made.result()


def _close(made: Future[Any]) -> None:
    if made.exception() is None:
        made.result().close()


async def _awaited_within(work: Callable[[], Any], is_late: Callable[[], bool]) -> Any:
    import asyncio

    from sqlalchemy.util import greenlet_spawn

    task = asyncio.ensure_future(greenlet_spawn(work))
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_EVERY)
            if not task.done() and is_late():
                raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=LEAST)  # it closes what it has opened


# -- sockets ------------------------------------------------------------


def _socket_of(driver: Any) -> tuple[int, int, int] | None:
    number = file_number(driver)
    if number is None:
        return None
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return number, status.st_dev, status.st_ino


def _interrupt(driver: Any) -> None:
    """Interrupt a statement of SQLite, which frees its file at the rollback."""
    getattr(driver, "_conn", driver).interrupt()  # aiosqlite has one of sqlite3


def _shut_down(call: _Call) -> None:
    """Shut the connection of a call down for both sides: the driver gets an error."""
    if call.socket is not None and _socket_of(call.driver()) == call.socket:
        with suppress(OSError), socket.fromfd(call.socket[0], -1, -1, -1) as handle:
            handle.shutdown(socket.SHUT_RDWR)
