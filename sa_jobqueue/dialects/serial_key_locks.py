"""Locks of serial keys: they keep the jobs of one key to one claimer until its transaction ends.

A serial key is the value of the columns of ``serial_by`` or ``limit_by``, such as an account.
Many rows share it and none stands for it alone, so locking rows does not lock the key.
Each kind of database locks it in another way (``Database.serial_key_locks()``); none waits
for a lock.

A key is known by a token, which the server computes from the columns: so its own idea of
equal values decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Table, and_, case
from sqlalchemy.types import TypeDecorator, TypeEngine


class SerialKeyLocks(ABC):
    """How one kind of database locks serial keys."""

    @abstractmethod
    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        """Return the token of these mapped columns as a column; NULL where one of them is NULL.

        Raises:
            UnsupportedDatabase: there is no token for values of such a type.
        """

    @abstractmethod
    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        """Lock keys until the transaction ends; return those that nobody else has locked."""

    @abstractmethod
    def statement(self) -> Executable | None:
        """Return an example of the statement that :meth:`take` runs; None: it runs none."""


def sorted_by_name(columns: Sequence[Any]) -> list[Any]:
    """Sort columns by name: (a, b) and (b, a) are the same key."""
    return sorted(columns, key=lambda column: str(column.expression.name))


def unless_null(columns: Sequence[Any], token: ColumnElement[Any]) -> ColumnElement[Any]:
    """Make a token NULL where one of the columns is NULL: such a row has no key."""
    nullable = [column for column in columns if column.expression.nullable]
    if not nullable:
        return token
    return case((and_(*(column.is_not(None) for column in nullable)), token))


def plain_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type that a TypeDecorator decorates, or the type itself."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind
