"""What MySQL and MariaDB share: InnoDB, its locks and its isolation levels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import Connection, Index
from sqlalchemy.dialects.mysql import dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from ..clock import utc_now
from .base import Database

_CANNOT_CHANGE_NOW = 1568  # a transaction is already in progress

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"


class InnoDB(Database):
    """The common ground of MySQL and MariaDB."""

    ordered_update = True
    locks_what_it_scans = True

    # Beside a short list of keys the optimizer may take the reap index, or the
    # claim index, and lock what it finds there in another order than others do.
    key_hint: ClassVar[str | None] = "FORCE INDEX (PRIMARY)"

    begin_statement: ClassVar[str] = "START TRANSACTION"

    def begin(self, connection: Connection) -> bool:
        """Make the next transaction READ COMMITTED, where it is still the next.

        Under the default, REPEATABLE READ, the gap locks of consumers that
        claim and finish deadlock. The statement is for one transaction only:
        the session's own level is not touched, and nothing needs resetting.
        Only the server knows whether a transaction is open, so it is asked by
        trying: the drivers' flags are not brought up to date by a SELECT.
        """
        try:
            connection.exec_driver_sql(READ_COMMITTED)
        except DBAPIError as error:
            if error.orig is None or error.orig.args[:1] != (_CANNOT_CHANGE_NOW,):
                raise
            return False
        return True

    def keeps_snapshot(self, connection: Connection) -> bool:
        level = connection.exec_driver_sql(f"SELECT {self.isolation_variable}").scalar_one()
        return str(level).replace("-", " ").upper() in {"REPEATABLE READ", "SERIALIZABLE"}

    isolation_variable: ClassVar[str] = "@@transaction_isolation"

    @contextmanager
    def transaction_in_autocommit(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(READ_COMMITTED)
        with super().transaction_in_autocommit(connection):
            yield

    @staticmethod
    def index_name(index: Index) -> str:
        """Return an index's name, quoted, as the naming convention makes it."""
        return dialect().identifier_preparer.format_index(index)

    @classmethod
    def is_missing_index(cls, error: BaseException) -> bool:
        return error.args[:1] == (1176,)

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        # Deadlock; lock wait timeout; record has changed since last read.
        return error.args[:1] in {(1213,), (1205,), (1020,)}


@compiles(utc_now, "mysql", "mariadb")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    if not element.clauses.clauses:
        return "UTC_TIMESTAMP(6)"
    shift = compiler.process(element.clauses, **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {shift} MICROSECOND)"
