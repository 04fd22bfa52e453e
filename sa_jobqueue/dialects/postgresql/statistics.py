"""PostgreSQL: the planner is told of a table that has just grown.

Of a table that was never analyzed, or when it was empty, the planner guesses how many jobs are due.
Where it guesses no more of them than a claim may take, it reads and sorts all jobs, instead of
walking the claim index to its limit. Autovacuum would analyze the table within minutes.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    cast,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement

from ..examination import qualified
from .claim_lock import TableNumber

log = logging.getLogger("sa_jobqueue.enqueue")

#: New rows are told of if they are more than this share of those that the planner knows of.
SHARE = 0.1

#: Up to here it does not matter what the planner knows: a claim that sorts so many is quick.
FEW = 5_000

# Of a partitioned table the partitions count, which autovacuum analyzes.
_CHANGED = text("""
SELECT coalesce(sum(s.n_mod_since_analyze), 0) AS changed,
  coalesce(sum(greatest(c.reltuples, 0)), 0) AS known
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.relid IN (SELECT to_regclass(:table) AS relid
  UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)))
""")

_TIMEOUT: Any = literal_column("'statement_timeout'")


class _Analyze(ExecutableDDLElement):
    inherit_cache = False

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(_Analyze, "postgresql")
def _analyze(element: _Analyze, compiler: Any, **kw: Any) -> str:
    # Somebody else who analyzes the table, such as autovacuum, holds its lock.
    return f"ANALYZE (SKIP_LOCKED) {compiler.preparer.format_table(element.table)}"


def analyze_if_grown(connection: Connection, table: Table, rows: int) -> None:
    """Analyze a table, in the caller's transaction, if so many new rows are much for it.

    It reads 30,000 rows at most. The transaction's other statements keep their time limit.
    """
    known, timeout = _known(connection, table, func.current_setting(_TIMEOUT))
    if rows <= SHARE * known:
        return
    connection.execute(select(func.set_config(_TIMEOUT, "0", true())))
    connection.execute(_Analyze(table))
    again, _ = _known(connection, table, func.set_config(_TIMEOUT, timeout, true()))
    if again == known:
        log.info(
            "%d rows are new in %s, and its statistics are older: claims may be slow until "
            "autovacuum or the table's owner has analyzed it",
            rows,
            table.fullname,
        )


def unanalyzed_rows(connection: Connection, table: Table) -> int:
    """Return how many rows have changed since a table was analyzed, if more than it had then.

    The server counts them with a delay of up to a second.
    """
    found = connection.execute(_CHANGED, {"table": qualified(connection, table)}).one()
    return int(found.changed) if found.changed > max(FEW, found.known) else 0


def _known(connection: Connection, table: Table, setting: Any) -> tuple[float, str]:
    """Return how many rows the planner knows of, and a setting."""
    rows: ColumnElement[float] = literal_column("reltuples")
    number: ColumnElement[int] = literal_column("oid")
    ours = number == cast(TableNumber(table), OID)
    asked = select(rows, setting).select_from(text("pg_catalog.pg_class")).where(ours)
    found: Any = connection.execute(asked).one()
    return found[0], found[1]
