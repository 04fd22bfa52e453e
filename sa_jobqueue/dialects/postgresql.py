"""PostgreSQL: one statement claims, since a locking sub-select can be fenced."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from ..clock import utc_now
from .base import Database


class PostgreSQL(Database):
    """PostgreSQL 13 and later, by any driver."""

    title = "PostgreSQL"
    minimum = (13,)

    skip_locked = True
    no_key_update = True
    lock_of = True
    lock_once = True
    update_returning = True
    delete_returning = True
    forgets_implied = True

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return state in {"40001", "40P01"}  # serialization failure, deadlock


@compiles(utc_now, "postgresql")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # now() is the time at which the transaction began: in an old transaction a
    # claim would be born expired. clock_timestamp() differs from row to row.
    if not element.clauses.clauses:
        return "statement_timestamp()"
    shift = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() + {shift} * interval '1 microsecond')"
