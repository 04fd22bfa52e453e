"""PostgreSQL: a serial key is locked by an advisory lock of the transaction.

The end of the transaction frees the lock, and so does ROLLBACK TO a savepoint from before.
The lock's number has 64 bits: it equals that of a named lock only by a chance of 1 in 2^64,
and never that of a row, which has two numbers of 32 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from zlib import crc32

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Select,
    String,
    Table,
    Uuid,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)

from ...errors import UnsupportedDatabase
from ..capabilities import Capabilities
from ..serial_key_locks import SerialKeyLocks, plain_type, sorted_by_name, unless_null
from .claim_lock import TableNumber
from .integer_array import IntegerArray


class PostgreSQLSerialKeyLocks(SerialKeyLocks):
    """``pg_try_advisory_xact_lock``."""

    def __init__(self, database: Capabilities) -> None:
        self._database = database

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # A record is hashed by the types of its columns: so equal values have the same hash.
        ordered = sorted_by_name(columns)
        record = func.row(*ordered)
        seed = cast(TableNumber(table), BigInteger) + literal_column(str(_columns_number(ordered)))
        if self._database.hashes_records:
            return unless_null(columns, func.hash_record_extended(record, seed, type_=BigInteger))
        self._check_text(table, columns)
        text = cast(record, String)
        return unless_null(columns, func.hashtextextended(text, seed, type_=BigInteger))

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(connection.execute(_TAKE, {"sa_jobqueue_tokens": list(tokens)}).scalars())

    def statement(self) -> Executable:
        return _TAKE

    def _check_text(self, table: Table, columns: Sequence[Any]) -> None:
        """Refuse types whose text depends on a session's settings."""
        types = [plain_type(column.type) for column in columns]
        if not all(isinstance(kind, Integer | String | Uuid) for kind in types):
            raise UnsupportedDatabase(
                f"keys of {table.description} cannot be locked on {self._database}: before "
                "PostgreSQL 14 only keys of integers, strings and UUIDs can; upgrade the server"
            )


def _columns_number(columns: Sequence[Any]) -> int:
    """Return a number for these columns, to which the oid of the table is added."""
    names = "\0".join(str(column.expression.name) for column in columns)
    return crc32(names.encode()) << 31


def _take() -> Select[Any]:
    """Return the SELECT that locks the given numbers only: there is nothing to sort or filter."""
    given = cast(bindparam("sa_jobqueue_tokens", type_=IntegerArray()), ARRAY(BigInteger))
    tokens = func.unnest(given).table_valued("token", name="key").render_derived()
    return select(tokens.c.token).where(func.pg_try_advisory_xact_lock(tokens.c.token))


_TAKE = _take()
