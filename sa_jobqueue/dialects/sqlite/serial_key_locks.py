"""SQLite: the write lock, which the claiming transaction has already, locks every serial key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, Table, func

from ..serial_key_locks import SerialKeyLocks, sorted_by_name, unless_null


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
