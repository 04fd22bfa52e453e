"""An INSERT for MySQL and MariaDB that passes over rows whose keys are taken."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Insert
from sqlalchemy.ext.compiler import compiles


class InsertNew(Insert):
    """An INSERT that leaves a row as it is whose key is taken.

    Not INSERT IGNORE: that turns other errors into warnings too. Nor what the dialect
    has for it: between VALUES and this it puts an alias, behind which PyMySQL 1.1 and
    its kin send row by row.
    """

    inherit_cache = True


@compiles(InsertNew)
def _insert_new(statement: InsertNew, compiler: Any, **kw: Any) -> str:
    plain = compiler.visit_insert(statement, **kw)
    same = compiler.preparer.format_column(_settable(statement.table))
    return f"{plain} ON DUPLICATE KEY UPDATE {same} = {same}"


def _settable(table: Any) -> Column[Any]:
    """Find a column that can be set to what it is.

    MySQL refuses the number that it generated itself: error 1869, for two rows of one
    statement with the same key. And MariaDB 10.11 was seen to put an empty text into a
    column that is named here and missing in the INSERT, where it must have a value.
    """
    generated = table.autoincrement_column
    settable = [column for column in table.c if column is not generated and not column.computed]
    return next(filter(_may_be_missing, settable), settable[0])


def _may_be_missing(column: Column[Any]) -> bool:
    """Tell whether an INSERT that does not name the column is right."""
    return bool(column.nullable or column.default or column.server_default)
