"""PostgreSQL: the lock that lets one transaction at a time claim from a table in strict order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    Integer,
    String,
    Table,
    case,
    func,
    literal_column,
    not_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles

from ..connections import as_value
from ..table_expression import TableExpression

#: The first number of the lock; the second is the table's oid. Locks of rows have a table's
#: oid as their first number, and no user's table has an oid below 16,384.
SPACE = 7303

_KEEPING_SNAPSHOT: list[ColumnElement[str]] = [
    literal_column("'repeatable read'"),
    literal_column("'serializable'"),
]


def claim_lock(table: Table, limit: timedelta) -> Executable:
    """Return a SELECT that waits for the lock, as long as lock_timeout says, else the limit.

    PostgreSQL computes the columns from left to right, and OFFSET keeps the sub-select
    apart: so it sets the timeout, waits for the lock, and restores the caller's own
    lock_timeout.
    """
    name: ColumnElement[str] = literal_column("'lock_timeout'")
    forever: ColumnElement[str] = literal_column("'0'")
    isolation = func.current_setting(literal_column("'transaction_isolation'"))
    settings = (
        select(
            func.current_setting(name).label("lock_timeout"),
            isolation.in_(_KEEPING_SNAPSHOT).label("keeps_snapshot"),
        )
        .offset(literal_column("0"))
        .subquery("sa_jobqueue_settings")
    )
    own, keeps_snapshot = settings.c.lock_timeout, settings.c.keeps_snapshot
    ours: ColumnElement[str] = literal_column(f"'{limit // timedelta(milliseconds=1)}'")
    lock = func.pg_advisory_xact_lock(literal_column(str(SPACE)), TableNumber(table))
    return select(
        keeps_snapshot,
        func.set_config(name, case((own == forever, ours), else_=own), true()),
        case((not_(keeps_snapshot), lock)),
        func.set_config(name, own, true()),
    )


class TableNumber(TableExpression[int]):
    """A table's oid, as the 32-bit number that an advisory lock takes."""

    __visit_name__ = "sa_jobqueue_table_number"
    inherit_cache = True
    type = Integer()


@compiles(TableNumber, "postgresql")
def _table_number(element: TableNumber, compiler: Any, **kw: Any) -> str:
    # The server finds the table, since its name can be spelled in many ways.
    quoted = compiler.preparer.format_table(element.table)
    name = as_value(compiler.dialect, quoted)  # rendering doubles each % of a literal again
    text = compiler.render_literal_value(name, String())
    return f"CAST(CAST(CAST({text} AS regclass) AS oid) AS integer)"
