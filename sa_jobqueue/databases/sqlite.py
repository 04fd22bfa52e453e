"""SQLite: it has one writer at a time, so one UPDATE .. RETURNING claims."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from random import SystemRandom
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Insert,
    Integer,
    String,
    Table,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from .clock import SQLITE_MILLISECONDS
from .connections import driver_connection
from .database import Database, Version, sorted_by_name, unless_null
from .named_locks import Deadline, Holder, Server
from .sqlite_lock_files import LockFile, file_of, holder_of, lock_path, memory_path, path_of

#: After how many of its virtual machine's instructions SQLite asks whether to go on.
_INSTRUCTIONS = 10_000

#: Seconds between two attempts of a waiter for a named lock.
_AGAIN = 0.05


class SQLite(Database):
    """SQLite 3.35 and later, in a file or in memory."""

    title = "SQLite"
    minimum = (3, 35)
    begin_statement = "BEGIN IMMEDIATE"

    update_returning = True
    transaction_level = "SERIALIZABLE"
    one_writer = True
    tells_changes = True
    has_network = False
    partial_indexes_of = "sqlite"
    locks_keys = True

    # Primary result codes: the lowest byte of an error's code.
    error_codes: ClassVar[Mapping[str, Collection[Any]]] = {
        "lock_timeout": [5, 6],  # busy, locked
        "mistake": [1, 8],  # such as the name of a missing table; a file that may only be read
        "refused_login": [14],  # cannot open
        "shortage": [7, 10, 13],  # no memory, the file system, full
        "time_limit": [9],  # interrupted
        "transient": [5, 6],
    }

    @classmethod
    def meanings(cls, error: BaseException) -> set[str]:
        code = getattr(error, "sqlite_errorcode", None)
        if not isinstance(code, int):
            return set()
        is_missing = code & 0xFF == 1 and "no such table" in str(error)
        return cls.meanings_of(code & 0xFF) | ({"missing_table"} if is_missing else set())

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        version: Version | None = getattr(dialect.dbapi, "sqlite_version_info", None)
        return version

    # -- transactions ---------------------------------------------------

    def begin_write(self, connection: Connection, *, is_new: bool = False) -> None:
        # A deferred transaction that reads first and writes later may get SQLITE_BUSY at
        # once, whatever the busy timeout.
        if not connection.in_transaction():
            connection.begin()  # as the next statement would: a listener may say BEGIN
        driver = driver_connection(connection)
        if is_new and _in_transaction(driver):  # by a listener, or autocommit=False
            connection.exec_driver_sql("COMMIT")
        if not _in_transaction(driver):
            connection.exec_driver_sql(self.begin_statement)

    def in_autocommit(self, connection: Connection) -> bool:
        driver = driver_connection(connection)
        try:
            if driver.isolation_level is not None:
                return False
            if not connection.in_transaction():
                connection.begin()  # as above
            return not driver.in_transaction
        # The connection is closed, as the next statement tells: aiosqlite, and sqlite3.
        except (ValueError, sqlite3.ProgrammingError):
            return False

    lock_timeout_question = "PRAGMA busy_timeout"

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        own = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        milliseconds = time // timedelta(milliseconds=1)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(own)}")

    @contextmanager
    def time_limit(self, connection: Connection, limit: timedelta) -> Iterator[None]:
        # The time counts from here for all statements. A progress handler of the application's own
        # is gone afterwards: SQLite does not tell it.
        driver = driver_connection(connection)
        deadline = time.monotonic() + limit.total_seconds()
        driver.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)

    # -- statements -----------------------------------------------------

    def claim_date(self) -> ColumnElement[Any]:
        digits = bindparam("sa_jobqueue_digits", callable_=_digits, type_=String)
        return _ClaimDate(digits)

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        # Since SQLite 3.38, JSON is no option of a build any more.
        if isinstance(key.type, Integer) and self.at_least(3, 38):
            # The text is the same for all lists, so the driver keeps the statement prepared. With
            # the integers in the text, SQLite parsed every finish anew.
            given: ColumnElement[Any] = bindparam(parameter, type_=_IntegerList())
            listed = func.json_each(given).table_valued("value", name="sa_jobqueue_listed")
            return key.in_(select(listed.c.value))
        return super().key_is_in(key, parameter)

    def insert_new(self, target: Any) -> Insert:
        return insert(target).on_conflict_do_nothing()

    def serial_key(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # It needs no lock: the database has one writer at a time.
        token, *more = [_quoted(column) for column in sorted_by_name(columns)]
        for part in more:
            token = token + "," + part
        return unless_null(columns, token)

    # -- files and their locks ------------------------------------------

    def seen_by_others(self, connection: Connection) -> bool:
        return file_of(connection) is not None

    def server_of(self, connection: Connection) -> Server | None:
        file = file_of(connection)
        if file is None:
            return Server.identified_by(self.title, memory_path(connection.engine.pool))
        # The folder too: a container may share the file alone, and not the lock files beside it.
        try:
            found = [os.stat(path) for path in (file, os.path.dirname(file))]
        except FileNotFoundError:  # the file was removed while it is open
            return None
        numbers = [number for status in found for number in (status.st_dev, status.st_ino)]
        return Server.identified_by(self.title, socket.gethostname(), file, *numbers)

    def acquire_lock(
        self, engine: Engine, name: str, deadline: Deadline, shared: object = None
    ) -> LockFile | None:
        database = path_of(engine)
        while (file := LockFile.taken(name, lock_path(database, name))) is None:
            if deadline.passed:
                return None
            time.sleep(deadline.left(_AGAIN))
        try:
            file.sign(database)
        except BaseException:
            file.give_back()
            raise
        return file

    def lock_holder(self, connection: Connection, name: str) -> Holder | None:
        database = file_of(connection) or memory_path(connection.engine.pool)
        return holder_of(lock_path(database, name))

    def lock_holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        return holder_of(lock_path(path_of(engine), name))


def _in_transaction(driver: Any) -> bool:
    try:
        return bool(driver.in_transaction)
    except ValueError:  # the connection is closed
        return False


def _quoted(column: Any) -> ColumnElement[str]:
    nocase = getattr(column.type, "collation", None) == "NOCASE"
    return func.quote(func.lower(column) if nocase else column, type_=String)


def schema_prefix(connection: Connection, table: Table) -> str:
    schema = connection.schema_for_object(table)
    return f"{connection.dialect.identifier_preparer.quote_schema(schema)}." if schema else ""


# -- the clock ---------------------------------------------------------


class _ClaimDate(FunctionElement[datetime]):
    """The time of a claim: SQLite's clock, with three digits behind its milliseconds.

    The clock of SQLite counts milliseconds, and threads that share an owner's name make several
    claims in one. Had two of them the same time, the fence of a claim that was rolled back would
    fit the claim that came after it. So the digits count the claims of a process. They repeat
    after a thousand claims, which take longer than a millisecond. Each process begins with
    another number.
    """

    name = "claim_date"
    inherit_cache = True
    type: Any = DateTime(timezone=True)


@compiles(_ClaimDate, "sqlite")
def _milliseconds_and_digits(element: _ClaimDate, compiler: Any, **kw: Any) -> str:
    digits = compiler.process(element.clauses, **kw)
    return f"(strftime({compiler.process(SQLITE_MILLISECONDS)}, 'now') || {digits})"


_NUMBERS = 1_000

_numbers = count()


def _start() -> None:
    global _numbers
    _numbers = count(SystemRandom().randrange(_NUMBERS))


_start()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start)


def _digits() -> str:
    return f"{next(_numbers) % _NUMBERS:03d}"


class _IntegerList(TypeDecorator[Sequence[int]]):
    """A list of integers, None as null, written as JSON."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Sequence[int | None] | None, dialect: Dialect) -> str:
        """Write the text, and refuse anything but integers."""
        words = ("null" if number is None else str(int(number)) for number in value or ())
        return f"[{','.join(words)}]"
