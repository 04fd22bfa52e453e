"""Real faults at random moments of a worker's turns, chosen by a seed.

An error is raised by the driver itself, in the driver's own class: a server is told to raise it,
and SQLite is brought to it on a connection beside. A connection that is to die is killed by its
server; on SQLite it is closed under SQLAlchemy's hands.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any

from sqlalchemy import URL, Engine, event

from sa_jobqueue.databases import database_of_dialect
from tests.support import make_engine, until

#: Of so many statements and commits one goes wrong.
ONE_OF = 6

REFUSED = "statement refused"
KILLED = "connection killed"

BEFORE_STATEMENT = "before a statement"
AFTER_STATEMENT = "after a statement"
BEFORE_COMMIT = "before a COMMIT"
#: The transaction is committed, and its answer lost.
AFTER_COMMIT = "after a COMMIT"

#: The errors of the servers, by their SQLSTATEs and numbers.
POSTGRESQL = {REFUSED: "23505", "lock timeout": "55P03", "deadlock": "40P01", "full disk": "53100"}
INNODB = {
    REFUSED: ("23000", 1062),
    "lock timeout": ("HY000", 1205),
    "deadlock": ("40001", 1213),
    "full disk": ("HY000", 1114),
}

#: What ends a connection, and what finds it as long as it lives.
ENDING = {
    "postgresql": (
        "SELECT pg_terminate_backend({})",
        "SELECT 1 FROM pg_stat_activity WHERE pid = {}",
    ),
    "mysql": ("KILL {}", "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {}"),
}
ENDING["mariadb"] = ENDING["mysql"]

#: Where SQLAlchemy hands a statement to a driver.
EXECUTING = ("do_execute", "do_execute_no_params", "do_executemany")

#: What happens, and when.
Fault = tuple[str, str]
NOTHING: Fault = ("nothing", "never")


class FaultInjection:
    """Let as many statements and commits of a worker go wrong as are wanted, then no more.

    Args:
        engine: the worker's own, of any driver.
        url: the same database by a synchronous driver: connections are killed from there.
        seed: decides what goes wrong, and when.
        wanted: how many faults.
        when_over: called at each statement after the last fault.
        one_of: of so many statements and commits one goes wrong.

    Attributes:
        seen: how often each fault has happened: what, and when.
        kinds: each fault that there is.
    """

    def __init__(
        self,
        engine: Engine,
        url: URL,
        *,
        seed: int,
        wanted: int,
        when_over: Callable[[], object],
        one_of: int = ONE_OF,
    ) -> None:
        self.seen: Counter[Fault] = Counter()
        self._engine = engine
        self._dialect: Any = engine.dialect
        self._random = random.Random(seed)
        self._wanted = wanted
        self._when_over = when_over
        self._one_of = one_of
        self._begun = False
        self._alias = url.get_backend_name()
        self._beside = make_engine(url, isolation_level="AUTOCOMMIT")
        self._errors = errors_of(self._alias)
        self.kinds = self._kinds()

    def begin(self) -> None:
        """Let things go wrong from now on."""
        self._begun = True

    def __enter__(self) -> FaultInjection:
        for name in EXECUTING:
            setattr(self._dialect, name, partial(self._execute, getattr(self._dialect, name)))
        self._dialect.do_commit = partial(self._commit, self._dialect.do_commit)
        if self._alias != "sqlite":
            event.listen(self._engine, "connect", self._remember_number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in (*EXECUTING, "do_commit"):
            del vars(self._dialect)[name]
        self._beside.dispose()

    def _kinds(self) -> list[Fault]:
        moments = (BEFORE_STATEMENT, AFTER_STATEMENT, BEFORE_COMMIT)
        kinds = [*product((*self._errors, KILLED), moments), (KILLED, AFTER_COMMIT)]
        if self._dialect.driver == "aiosqlite":
            # Nobody ends an SQLite connection but its process. And SQLAlchemy's adapter takes the
            # COMMIT of a closed connection for done.
            kinds.remove((KILLED, BEFORE_COMMIT))
            kinds.remove((KILLED, AFTER_STATEMENT))
        return kinds

    # -- a statement, a COMMIT ------------------------------------------

    def _execute(self, execute: Any, cursor: Any, *args: Any, context: Any = None) -> None:
        what, when = self._draw(BEFORE_STATEMENT, AFTER_STATEMENT)
        context = args[-1] if context is None else context
        if when == BEFORE_STATEMENT:
            self._happen(what, context.root_connection.connection, cursor)
        execute(cursor, *args)
        if when == AFTER_STATEMENT:
            self._happen(what, context.root_connection.connection, cursor)

    def _commit(self, commit: Any, connection: Any) -> None:
        what, when = self._draw(BEFORE_COMMIT, AFTER_COMMIT)
        if when == BEFORE_COMMIT:
            self._happen(what, connection, connection.cursor())
        commit(connection)
        if when == AFTER_COMMIT:
            self._happen(what, connection, connection.cursor())
            connection.cursor().execute("SELECT 1")  # the driver notices, and raises its error
            raise AssertionError("the connection outlived its end")

    def _draw(self, *moments: str) -> Fault:
        """Choose what goes wrong now, if anything."""
        if self.seen.total() >= self._wanted:
            self._when_over()
        elif self._begun and self._random.randrange(self._one_of) == 0:
            fault = self._random.choice([fault for fault in self.kinds if fault[1] in moments])
            self.seen[fault] += 1
            return fault
        return NOTHING

    def _happen(self, what: str, connection: Any, cursor: Any) -> None:
        if what == KILLED:
            self._kill(connection)
        else:
            self._errors[what](cursor)

    # -- ending connections ---------------------------------------------

    def _remember_number(self, connection: Any, record: Any) -> None:
        # Without asking the server: a listener has no deadline, and the network may be silent.
        driver = self._dialect.get_driver_connection(connection)
        record.info["number"] = database_of_dialect(self._dialect).told_backend(driver)

    def _kill(self, connection: Any) -> None:
        if self._alias == "sqlite":
            # A closed connection keeps its write lock while a cursor of it has rows to fetch.
            connection.dbapi_connection.rollback()
            connection.dbapi_connection.close()
            return
        end, listed = ENDING[self._alias]
        number = connection.info["number"]
        with self._beside.connect() as beside:
            beside.exec_driver_sql(end.format(number))
            until(lambda: beside.exec_driver_sql(listed.format(number)).first() is None)


# -- errors ---------------------------------------------------------------


def errors_of(alias: str) -> Mapping[str, Callable[[Any], object]]:
    """Return what raises each error, given a cursor of the connection that is to meet it."""
    if alias == "sqlite":
        return {REFUSED: refused_by_sqlite, "busy": busy_sqlite, "full disk": full_sqlite}
    if alias == "postgresql":
        return {what: partial(_raised_by_postgresql, state) for what, state in POSTGRESQL.items()}
    return {what: partial(_signalled, *numbers) for what, numbers in INNODB.items()}


def _raised_by_postgresql(state: str, cursor: Any) -> None:
    cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END $$")


def _signalled(state: str, number: int, cursor: Any) -> None:
    cursor.execute(
        f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'injected'"
    )


def refused_by_sqlite(cursor: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as beside:
        beside.execute("CREATE TABLE injected (id INTEGER PRIMARY KEY)")
        beside.execute("INSERT INTO injected VALUES (1), (1)")


def full_sqlite(cursor: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as beside:
        beside.execute("PRAGMA max_page_count = 1")
        beside.execute("CREATE TABLE injected (id INTEGER PRIMARY KEY)")


def busy_sqlite(cursor: Any) -> None:
    with NamedTemporaryFile() as file, closing(sqlite3.connect(file.name)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with closing(sqlite3.connect(file.name, timeout=0)) as beside:
            beside.execute("BEGIN IMMEDIATE")
