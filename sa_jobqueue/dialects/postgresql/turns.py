"""PostgreSQL: whose turn it is to claim in strict order, by a lock that a transaction keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    Integer,
    Table,
    case,
    func,
    literal_column,
    not_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

#: The first number of the locks; the second is the table's oid. No table of a
#: user's has an oid below 16,384, and the locks of rows begin with such a one.
SPACE = 7303

_KEEPING_SNAPSHOT: list[ColumnElement[str]] = [
    literal_column("'repeatable read'"),
    literal_column("'serializable'"),
]


def claim_turn(table: Table, limit: timedelta) -> Executable:
    """Wait for the turn to claim from a table, as long as lock_timeout says, or the limit.

    The target list is worked out from left to right, and the sub-select is kept
    apart by its OFFSET: the time is set, the lock is waited for, and the
    caller's own lock_timeout is back.
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
        .subquery("settings")
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


class TableNumber(ColumnElement[int]):
    """A table's oid, as the 32-bit number that an advisory lock takes."""

    __visit_name__ = "sa_jobqueue_table_number"
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("table", InternalTraversal.dp_clauseelement)
    ]
    inherit_cache = True
    type = Integer()

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(TableNumber, "postgresql")
def _table_number(element: TableNumber, compiler: Any, **kw: Any) -> str:
    # The server finds out which table is meant: its name can be spelled in many ways.
    name = compiler.preparer.format_table(element.table)
    return f"CAST(CAST(CAST($sa${name}$sa$ AS regclass) AS oid) AS integer)"
