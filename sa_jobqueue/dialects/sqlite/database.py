"""SQLite: it has one writer at a time, so one UPDATE .. RETURNING claims."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Insert, Integer, literal_column
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles

from ..capabilities import Version
from ..clock import utc_now
from ..connections import driver_connection
from ..database import Database
from ..owner_liveness import Server
from . import owner_liveness
from .claim_date import MILLISECONDS, claim_date
from .examination import SQLiteExamination
from .integer_list import integers_in
from .named_locks import SQLiteNamedLocks, file_of
from .schema_changes import SQLiteSchemaChanges
from .serial_key_locks import SQLiteSerialKeyLocks
from .time_limit import interrupted_after

# Primary result codes: the lowest byte of an error's code.
_ERROR, _BUSY, _LOCKED = 1, 5, 6
_NO_MEMORY, _READ_ONLY, _INTERRUPTED, _IO_ERROR, _FULL, _CANNOT_OPEN = 7, 8, 9, 10, 13, 14


def _code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


class SQLite(Database):
    """SQLite 3.35 and later, in a file or in memory."""

    title = "SQLite"
    minimum = (3, 35)
    begin_statement: ClassVar[str] = "BEGIN IMMEDIATE"

    update_returning = True
    delete_returning = True
    transaction_level = "SERIALIZABLE"
    one_writer = True
    tells_changes = True
    returns_new = True

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        version: Version | None = getattr(dialect.dbapi, "sqlite_version_info", None)
        return version

    def begin_write(self, connection: Connection) -> None:
        # A deferred transaction that reads first and writes later may get SQLITE_BUSY at
        # once, whatever the busy timeout.
        if not connection.in_transaction():
            connection.begin()  # as the next statement would: a listener may say BEGIN
        if not _in_transaction(driver_connection(connection)):
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
        return claim_date()

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        # Since SQLite 3.38, JSON is no option of a build any more.
        if isinstance(key.type, Integer) and self.at_least(3, 38):
            return key.in_(integers_in(parameter))
        return super().key_is_in(key, parameter)

    def insert_new(self, target: Any) -> Insert:
        return insert(target).on_conflict_do_nothing()

    def seen_by_others(self, connection: Connection) -> bool:
        return file_of(connection) is not None

    def server_of(self, connection: Connection) -> Server | None:
        return owner_liveness.server_of(connection, self.title)

    def time_limit(self, connection: Connection, limit: timedelta) -> AbstractContextManager[None]:
        return interrupted_after(driver_connection(connection), limit)

    @classmethod
    def is_missing_table(cls, error: BaseException) -> bool:
        return _code(error) == _ERROR and "no such table" in str(error)

    @classmethod
    def is_time_limit(cls, error: BaseException) -> bool:
        return _code(error) == _INTERRUPTED

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return cls.is_transient(error)

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        return _code(error) in {_BUSY, _LOCKED}

    @classmethod
    def is_shortage(cls, error: BaseException) -> bool:
        return _code(error) in {_NO_MEMORY, _IO_ERROR, _FULL}

    @classmethod
    def is_refused_login(cls, error: BaseException) -> bool:
        return _code(error) == _CANNOT_OPEN

    @classmethod
    def is_mistake(cls, error: BaseException) -> bool:
        # Such as the name of a missing table; a file that may only be read.
        return _code(error) in {_ERROR, _READ_ONLY}

    # -- parts ----------------------------------------------------------

    def named_locks(self) -> SQLiteNamedLocks:
        return SQLiteNamedLocks()

    def serial_key_locks(self) -> SQLiteSerialKeyLocks:
        return SQLiteSerialKeyLocks()

    def examination(self) -> SQLiteExamination:
        return SQLiteExamination(self)

    def schema_changes(self) -> SQLiteSchemaChanges:
        return SQLiteSchemaChanges(self)


_SHIFT: ColumnElement[str] = literal_column("'%+.6f seconds'")


@compiles(utc_now, "sqlite")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # SQLite's clock counts milliseconds; three zeros make six digits, so that the text
    # compares with the times that SQLAlchemy stores.
    shift = ""
    if element.clauses.clauses:
        microseconds = compiler.process(element.clauses, **kw)
        shift = f", printf({compiler.process(_SHIFT)}, {microseconds} / 1000000.0)"
    return f"(strftime({compiler.process(MILLISECONDS)}, 'now'{shift}) || '000')"


def _in_transaction(driver: Any) -> bool:
    try:
        return bool(driver.in_transaction)
    except ValueError:  # as above
        return False
