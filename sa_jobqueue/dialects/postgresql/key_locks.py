"""PostgreSQL: a key is locked by an advisory lock of the transaction.

The end of the transaction frees it, and so does ROLLBACK TO a savepoint from before.
Its number has 64 bits: those of named locks, by chance one of 2^64, and those of rows
not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
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
from ..key_locks import KeyLocks, in_order, plain_type, unless_null
from .arrays import IntegerArray
from .turns import TableNumber

if TYPE_CHECKING:
    from ..capabilities import Database


class PostgreSQLKeyLocks(KeyLocks):
    """``pg_try_advisory_xact_lock``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # A record is hashed by its columns' own types: what is equal has one hash.
        ordered = in_order(columns)
        record = func.row(*ordered)
        seed = cast(TableNumber(table), BigInteger) + literal_column(str(_number(ordered)))
        if self._database.hashes_records:
            return unless_null(columns, func.hash_record_extended(record, seed, type_=BigInteger))
        self._check_text(table, columns)
        text = cast(record, String)
        return unless_null(columns, func.hashtextextended(text, seed, type_=BigInteger))

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(connection.execute(_TAKE, {"claim_tokens": list(tokens)}).scalars())

    def statement(self) -> Executable:
        return _TAKE

    def _check_text(self, table: Table, columns: Sequence[Any]) -> None:
        """Refuse what has a text that depends on a session's settings."""
        if not all(isinstance(plain_type(one.type), Integer | String | Uuid) for one in columns):
            raise UnsupportedDatabase(
                f"keys of {table.description} cannot be locked on {self._database}: before "
                "PostgreSQL 14 only those of integers, strings and UUIDs can; upgrade the server"
            )


def _number(columns: Sequence[Any]) -> int:
    """Tell keys of different columns apart; the oid of the table is added to it."""
    names = "\0".join(str(column.expression.name) for column in columns)
    return crc32(names.encode()) << 31


def _taking() -> Select[Any]:
    """Lock exactly the numbers given: there is nothing to sort, nor to filter."""
    given = cast(bindparam("claim_tokens", type_=IntegerArray()), ARRAY(BigInteger))
    tokens = func.unnest(given).table_valued("token", name="key").render_derived()
    return select(tokens.c.token).where(func.pg_try_advisory_xact_lock(tokens.c.token))


_TAKE = _taking()
