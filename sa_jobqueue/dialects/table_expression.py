"""Expressions in which a table's name stands, as the server is to see it."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Table
from sqlalchemy.sql.visitors import InternalTraversal

Value = TypeVar("Value")


class TableExpression(ColumnElement[Value]):
    """An expression made of a table; a subclass says its type and how it is compiled."""

    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("table", InternalTraversal.dp_clauseelement)
    ]
    inherit_cache: Any = True

    def __init__(self, table: Table) -> None:
        self.table = table
