"""Criteria of a mapped table, said of an alias or a CTE of it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import FromClause
from sqlalchemy.sql.util import ClauseAdapter


def adapted(element: Any, source: FromClause) -> Any:
    """Return an expression with the columns of `source` in the place of its table's columns.

    The only use of ClauseAdapter, which SQLAlchemy does not document: a test holds what we
    need of it.
    """
    return ClauseAdapter(source).traverse(element)
