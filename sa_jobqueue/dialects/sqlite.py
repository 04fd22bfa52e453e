"""SQLite: it has one writer at a time, so one UPDATE .. RETURNING claims."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from random import SystemRandom
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Insert,
    Integer,
    String,
    Table,
    bindparam,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from .capabilities import Meaning, Server, Version
from .clock import utc_now
from .connections import driver_connection
from .database import Database, SerialKeyLocks, sorted_by_name, unless_null
from .sqlite_lock_files import SQLiteNamedLocks, file_of, memory_path

#: What primary result codes mean: the lowest byte of an error's code.
_MEANINGS: dict[int, tuple[Meaning, ...]] = {
    1: ("mistake",),  # such as the name of a missing table
    5: ("lock_timeout", "transient"),  # busy
    6: ("lock_timeout", "transient"),  # locked
    7: ("shortage",),  # no memory
    8: ("mistake",),  # a file that may only be read
    9: ("time_limit",),  # interrupted
    10: ("shortage",),  # of the file system
    13: ("shortage",),  # full
    14: ("refused_login",),  # cannot open
}

#: After how many of its virtual machine's instructions SQLite asks whether to go on.
_INSTRUCTIONS = 10_000

#: The format of a time that SQLAlchemy stores, without the last three of its six digits.
_MILLISECONDS: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f'")

_SHIFT: ColumnElement[str] = literal_column("'%+.6f seconds'")


class SQLite(Database):
    """SQLite 3.35 and later, in a file or in memory."""

    title = "SQLite"
    examined_by = "examination.sqlite:SQLiteExamination"
    changed_by = "schema_changes.sqlite:SQLiteSchemaChanges"
    minimum = (3, 35)
    begin_statement: ClassVar[str] = "BEGIN IMMEDIATE"

    update_returning = True
    delete_returning = True
    transaction_level = "SERIALIZABLE"
    one_writer = True
    tells_changes = True
    returns_new = True
    has_network = False

    def lock_timeout(self, connection: Connection) -> timedelta | None:
        milliseconds = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        return timedelta(milliseconds=milliseconds)

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        version: Version | None = getattr(dialect.dbapi, "sqlite_version_info", None)
        return version

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

    @classmethod
    def meanings(cls, error: BaseException) -> tuple[Meaning, ...]:
        code = getattr(error, "sqlite_errorcode", None)
        if not isinstance(code, int):
            return ()
        if code & 0xFF == 1 and "no such table" in str(error):
            return ("mistake", "missing_table")
        return _MEANINGS.get(code & 0xFF, ())

    # -- parts ----------------------------------------------------------

    def named_locks(self) -> SQLiteNamedLocks:
        return SQLiteNamedLocks()

    def serial_key_locks(self) -> SQLiteSerialKeyLocks:
        return SQLiteSerialKeyLocks()


@compiles(utc_now, "sqlite")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # SQLite's clock counts milliseconds; three zeros make six digits, so that the text
    # compares with the times that SQLAlchemy stores.
    shift = ""
    if element.clauses.clauses:
        microseconds = compiler.process(element.clauses, **kw)
        shift = f", printf({compiler.process(_SHIFT)}, {microseconds} / 1000000.0)"
    return f"(strftime({compiler.process(_MILLISECONDS)}, 'now'{shift}) || '000')"


def _in_transaction(driver: Any) -> bool:
    try:
        return bool(driver.in_transaction)
    except ValueError:  # as above
        return False


class SQLiteSerialKeyLocks(SerialKeyLocks):
    """No lock of its own: the database has one writer at a time."""

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        parts = [_quoted(column) for column in sorted_by_name(columns)]
        token = parts[0]
        for part in parts[1:]:
            token = token + "," + part
        return unless_null(columns, token)

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(tokens)

    def statement(self) -> None:
        return None


def _quoted(column: Any) -> ColumnElement[str]:
    nocase = getattr(column.type, "collation", None) == "NOCASE"
    return func.quote(func.lower(column) if nocase else column, type_=String)


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
    return f"(strftime({compiler.process(_MILLISECONDS)}, 'now') || {digits})"


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
