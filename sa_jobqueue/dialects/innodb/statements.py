"""Statements that MySQL and MariaDB spell in their own way."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Delete, Insert, Table, delete
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType

from ..table_expression import TableExpression

FORCE_PRIMARY = "FORCE INDEX (PRIMARY)"


def delete_by_key(table: Table) -> Delete:
    """Return a DELETE that is bound to the primary key: only the multi-table form takes a hint."""
    return delete(table).prefix_with(_TableName(table)).with_hint(FORCE_PRIMARY)


class _TableName(TableExpression[Any]):
    __visit_name__ = "sa_jobqueue_table_name"
    inherit_cache = True
    type = NullType()


@compiles(_TableName)
def _table_name(element: _TableName, compiler: Any, **kw: Any) -> str:
    name: str = compiler.preparer.format_table(element.table)
    return name


class InsertNew(Insert):
    """An INSERT that skips rows whose keys exist already.

    Not INSERT IGNORE: that turns other errors into warnings too. And not the dialect's
    own ON DUPLICATE KEY UPDATE: it puts an alias behind VALUES, and then PyMySQL 1.1 and
    its kin send the rows one by one.
    """

    inherit_cache = True


@compiles(InsertNew)
def _insert_new(statement: InsertNew, compiler: Any, **kw: Any) -> str:
    plain = compiler.visit_insert(statement, **kw)
    same = compiler.preparer.format_column(_settable(statement.table))
    return f"{plain} ON DUPLICATE KEY UPDATE {same} = {same}"


def _settable(table: Any) -> Column[Any]:
    """Find a column that can be set to its own value.

    Not a generated number: for two rows of one statement with the same key, MySQL refuses
    it with error 1869. And not a column that an INSERT must name: where the INSERT did not,
    MariaDB 10.11 was seen to put an empty text into it.
    """
    generated = table.autoincrement_column
    settable = [column for column in table.c if column is not generated and not column.computed]
    return next(filter(_may_be_missing, settable), settable[0])


def _may_be_missing(column: Column[Any]) -> bool:
    """Tell whether an INSERT may leave the column out."""
    return bool(column.nullable or column.default or column.server_default)
