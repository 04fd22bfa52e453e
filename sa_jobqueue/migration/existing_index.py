"""Indexes as they are in the database: whether the wanted one is there, or another of its name."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Index, Table
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import desc_op

from ..dialects.connections import as_value
from ..dialects.examination import IndexColumn, ServerIndex, normalised
from ..errors import ArgumentError
from .runner import Runner


def exists(runner: Runner, index: Index, *, replace: bool = False) -> bool:
    """Tell whether the index exists, for instance from an interrupted run.

    Databases print an expression in words of their own. An index of expressions is taken for
    the wanted one, unless it is to be replaced: then it is built anew.

    Raises:
        ArgumentError: a different index of the same name exists, and `replace` is False.
    """
    found = existing(runner, index)
    if found is None:
        return False
    wanted = _predicate(runner, index)
    if (
        bool(index.unique) == found.unique
        and normalised(wanted) == normalised(found.predicate)
        and _same_columns(runner, index, found, expressions=not replace)
    ):
        return True
    if replace:
        return False
    columns = ", ".join(
        str(_column(runner, expression) or expression) for expression in index.expressions
    )
    raise ArgumentError(
        f"{table_of(index).description!r} has a different index of this name already, "
        f"{_unique(found.unique)}{found}, but claims and reapers need "
        f"{_unique(index.unique)}({columns}){f' WHERE {wanted}' if wanted else ''}: "
        "replace=True builds the wanted index, and then drops the one that is there"
    )


def existing(runner: Runner, index: Index) -> ServerIndex | None:
    """Return the index of this name in the database."""
    there = runner.database.examination().indexes(runner.connection, table_of(index))
    name = name_of(runner, index)
    return next((found for found in there if found.name == name), None)


def name_of(runner: Runner, index: Index) -> str:
    """Return the name in the database, where long names of a naming convention are cut."""
    preparer = runner.context.dialect.identifier_preparer
    name = preparer.format_constraint(index, _alembic_quote=False)
    assert name is not None
    return name


def _unique(unique: bool | None) -> str:
    return "UNIQUE " if unique else ""


def _same_columns(runner: Runner, index: Index, found: ServerIndex, *, expressions: bool) -> bool:
    """Compare the columns; an expression counts as the same where `expressions` is True."""
    wanted = [_column(runner, expression) for expression in index.expressions]
    return len(wanted) == len(found.columns) and all(
        expressions if own is None else own == other
        for own, other in zip(wanted, found.columns, strict=True)
    )


def _column(runner: Runner, expression: Any) -> IndexColumn | None:
    """Return a column of an index; None: an expression, whose text differs by database."""
    descending = False
    if isinstance(expression, UnaryExpression) and expression.modifier is desc_op:
        expression, descending = expression.element, runner.database.descending_indexes
    return IndexColumn(expression.name, descending) if isinstance(expression, Column) else None


def _predicate(runner: Runner, index: Index) -> str | None:
    """Return the WHERE clause of an index on this database, as SQL."""
    where: Any = runner.database.examination().predicate(index)
    if where is None or isinstance(where, str):  # autogenerate writes down what it has read
        return where
    how = {"literal_binds": True, "include_table": False}
    written = str(where.compile(dialect=runner.context.dialect, compile_kwargs=how))
    return as_value(runner.context.dialect, written)


def table_of(index: Index) -> Table:
    """Return the table of an index."""
    assert index.table is not None
    return index.table
