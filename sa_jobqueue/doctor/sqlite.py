"""What the doctor asks of SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Connection, String, Table, select, type_coerce

from ..databases.sqlite import schema_prefix
from .examination import Examination, Finding, IndexColumn, Plan, Query, ServerIndex, explained

_INDEX_IN_PLAN = re.compile(r"USING (?:COVERING )?INDEX (.+?)(?= \(|$)", re.MULTILINE)
_WHERE = re.compile(r"\)\s*WHERE\b(.*)$", re.IGNORECASE | re.DOTALL)

#: Of how many rows, the newest, the times are looked at.
NEWEST = 10_000


class SQLiteExamination(Examination):
    """What the doctor asks of SQLite."""

    # Without ANALYZE a plan does not depend on the table's size: there is no index to favour.
    explain_words = "EXPLAIN QUERY PLAN"

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        quote = connection.dialect.identifier_preparer.quote
        dot = schema_prefix(connection, table)

        def pragma(name: str, of: str) -> Sequence[Any]:
            return connection.exec_driver_sql(f"PRAGMA {dot}{name}({quote(of)})").all()

        def index(name: str, unique: int) -> ServerIndex:
            parts = pragma("index_xinfo", name)
            sql = connection.exec_driver_sql(
                f"SELECT sql FROM {dot}sqlite_master WHERE type = 'index' AND name = ?", (name,)
            ).scalar()
            where = _WHERE.search(sql or "")
            return ServerIndex(
                name=name,
                columns=tuple(_column(part, rowid) for part in parts if part[5]),
                implied=tuple(_column(part, rowid) for part in parts if not part[5]),
                predicate=where[1].strip() if where else None,
                unique=bool(unique),
            )

        rowid = _rowid(pragma("table_info", table.name))
        return [index(*row[1:3]) for row in pragma("index_list", table.name)]

    def plan(self, connection: Connection, query: Query, favoured: str | None = None) -> Plan:
        rows = explained(connection, self.explain_words, query)
        printed = "\n".join(row["detail"] for row in rows)
        return Plan(frozenset(_INDEX_IN_PLAN.findall(printed)), "TEMP B-TREE" in printed)

    def times(self, connection: Connection, column: Column[Any]) -> Iterator[Finding]:
        keys = column.table.primary_key
        newest = select(type_coerce(column, String).label("time"))
        time = newest.order_by(*(key.desc() for key in keys)).limit(NEWEST).subquery().c.time
        other = select(time).where(time.not_like("____-__-__ __:__:__%")).limit(1)
        if found := connection.execute(other).scalar():
            yield Finding.error(
                f"{column.name} has a time that another program has written, {found!r}: times are "
                "compared as text here, so this one is due hours too early or too late",
                f"UPDATE {column.table.name} SET {column.name} = "
                f"strftime('%Y-%m-%d %H:%M:%f', {column.name}), and have the program write UTC "
                "like 2026-01-31 07:00:00.000000",
            )


def _rowid(columns: Iterable[Any]) -> str:
    """Return the name of the column that is the rowid, as its alias."""
    keys = [column for column in columns if column[5]]
    alone = len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER"
    return str(keys[0][1]) if alone else "rowid"


def _column(part: Any, rowid: str) -> IndexColumn:
    names = {-1: rowid, -2: "an expression"}
    return IndexColumn(str(names.get(part[1], part[2])), bool(part[3]))
