"""Locks of keys: what keeps the jobs of one key to one claimer, until its transaction ends.

A key is the value of one or several columns, such as an account. Many rows have it,
and none is its own: locking rows does not lock it. So each kind of database has
another way (``Database.key_locks``). None of them waits.

A key is known by a token, which the server makes of the columns: by its own idea of
which values are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, String, Table, and_, case, func
from sqlalchemy.types import TypeDecorator, TypeEngine


class KeyLocks(ABC):
    """How one kind of database locks keys."""

    @abstractmethod
    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        """Name the key that these mapped columns make, as a column; NULL where one of them is.

        Raises:
            UnsupportedDatabase: values of such a type have no token here.
        """

    @abstractmethod
    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        """Lock keys until the transaction ends; return those that nobody else has."""

    @abstractmethod
    def statement(self) -> Executable | None:
        """Return a statement such as :meth:`take` runs, to be shown; None: there is none."""


class OneWriter(KeyLocks):
    """Where the transaction has the write lock already, and with it every key."""

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        parts = [_quoted(column) for column in in_order(columns)]
        token = parts[0]
        for part in parts[1:]:
            token = token + "," + part
        return unless_null(columns, token)

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(tokens)

    def statement(self) -> None:
        return None


def _quoted(column: Any) -> ColumnElement[str]:
    same = func.lower(column) if getattr(column.type, "collation", None) == "NOCASE" else column
    return func.quote(same, type_=String)


def in_order(columns: Sequence[Any]) -> list[Any]:
    """Sort columns by name: (a, b) and (b, a) are the same key."""
    return sorted(columns, key=lambda column: str(column.expression.name))


def unless_null(columns: Sequence[Any], token: ColumnElement[Any]) -> ColumnElement[Any]:
    """Make a token NULL where one of the columns is: that is no key."""
    nullable = [column for column in columns if column.expression.nullable]
    if not nullable:
        return token
    return case((and_(*(column.is_not(None) for column in nullable)), token))


def plain_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type behind decorators."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind
