"""Criteria of a mapped table, said of an alias or a CTE of it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause
from sqlalchemy.sql.visitors import replacement_traverse


def adapted(expression: Any, source: FromClause) -> Any:
    """Return an expression with the columns of `source` in the place of its table's columns."""
    columns: Any = source

    def of_source(element: Any, **kw: Any) -> Any:
        if not isinstance(element, ColumnElement):
            return None
        return columns.corresponding_column(element, require_embedded=True)

    mapped = hasattr(expression, "__clause_element__")
    clause: Any = expression.__clause_element__() if mapped else expression
    return replacement_traverse(clause, {}, of_source)
