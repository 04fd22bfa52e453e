"""SQLite: one writer at a time, so one UPDATE .. RETURNING is a claim."""

from __future__ import annotations

import os
import socket
from typing import Any, ClassVar

from sqlalchemy import Connection, Insert
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles

from ..capabilities import Database, Version
from ..clock import utc_now
from ..drivers import driver_connection
from ..owner_liveness import Server
from .examination import SQLiteExamination
from .named_locks import FileLocks, file_of, of_memory
from .schema_changes import SQLiteSchemaChanges

_BUSY, _LOCKED = 5, 6  # the primary result codes, in the lowest byte


class SQLite(Database):
    """SQLite 3.35 and later, a file or in memory."""

    title = "SQLite"
    minimum = (3, 35)
    begin_statement: ClassVar[str] = "BEGIN IMMEDIATE"

    update_returning = True
    delete_returning = True
    one_writer = True
    kept_as_given = (object,)
    returns_new = True

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        version: Version | None = getattr(dialect.dbapi, "sqlite_version_info", None)
        return version

    def begin_write(self, connection: Connection) -> None:
        # A deferred transaction that reads first and writes later gets
        # SQLITE_BUSY at once, whatever the busy timeout.
        if not driver_connection(connection).in_transaction:
            connection.exec_driver_sql(self.begin_statement)

    def in_autocommit(self, connection: Connection) -> bool:
        driver = driver_connection(connection)
        return driver.isolation_level is None and not driver.in_transaction

    def insert_new(self, target: Any) -> Insert:
        return insert(target).on_conflict_do_nothing()

    def named_locks(self) -> FileLocks:
        return FileLocks()

    def seen_by_others(self, connection: Connection) -> bool:
        return file_of(connection) is not None

    def server_of(self, connection: Connection) -> Server | None:
        file = file_of(connection)
        if file is None:
            return Server.identified_by(self.title, of_memory(connection.engine.pool))
        try:  # the folder too: a container may have this file alone, and not its locks
            found = [os.stat(path) for path in (file, os.path.dirname(file))]
        except FileNotFoundError:  # removed while it is open
            return None
        numbers = [number for status in found for number in (status.st_dev, status.st_ino)]
        return Server.identified_by(self.title, socket.gethostname(), file, *numbers)

    def examination(self) -> SQLiteExamination:
        return SQLiteExamination(self)

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return cls.is_transient(error)

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", None)
        return isinstance(code, int) and code & 0xFF in {_BUSY, _LOCKED}

    def schema_changes(self) -> SQLiteSchemaChanges:
        return SQLiteSchemaChanges(self)


@compiles(utc_now, "sqlite")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # SQLite's clock has milliseconds; six digits, so that the text compares
    # with what SQLAlchemy stores.
    shift = ""
    if element.clauses.clauses:
        microseconds = compiler.process(element.clauses, **kw)
        shift = f", printf('%+.6f seconds', {microseconds} / 1000000.0)"
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now'{shift}) || '000')".replace(
        "%", "%%" if compiler.preparer._double_percents else "%"
    )
