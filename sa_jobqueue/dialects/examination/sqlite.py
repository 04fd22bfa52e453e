"""SQLite: plans by EXPLAIN QUERY PLAN, indexes by PRAGMA."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    String,
    Table,
    select,
    type_coerce,
)

from . import Examination, IndexColumn, Plan, ServerIndex

_USED = re.compile(r"USING (?:COVERING )?INDEX (.+?)(?= \(|$)", re.MULTILINE)
_WHERE = re.compile(r"\)\s*WHERE\b(.*)$", re.IGNORECASE | re.DOTALL)

_ROWID, _EXPRESSION = -1, -2


class SQLiteExamination(Examination):
    """The answers of SQLite.

    Without ANALYZE a plan does not depend on the table's size: there is no index to favour.
    """

    explain_words: ClassVar[str] = "EXPLAIN QUERY PLAN"

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        return list(self._indexes(connection, table))

    def _indexes(self, connection: Connection, table: Table) -> Iterator[ServerIndex]:
        quote = connection.dialect.identifier_preparer.quote
        schema = connection.schema_for_object(table)
        dot = f"{quote(schema)}." if schema else ""
        rowid = self._rowid(connection, f"{dot}table_info({quote(table.name)})")
        listed = connection.exec_driver_sql(f"PRAGMA {dot}index_list({quote(table.name)})")
        for name, unique in [(row[1], bool(row[2])) for row in listed]:
            parts = connection.exec_driver_sql(f"PRAGMA {dot}index_xinfo({quote(name)})").all()
            sql = connection.exec_driver_sql(
                f"SELECT sql FROM {dot}sqlite_master WHERE type = 'index' AND name = ?", (name,)
            ).scalar()
            where = _WHERE.search(sql or "")
            yield ServerIndex(
                name=name,
                columns=tuple(_column(part, rowid) for part in parts if part[5]),
                implied=tuple(_column(part, rowid) for part in parts if not part[5]),
                predicate=where[1].strip() if where else None,
                unique=unique,
            )

    def _rowid(self, connection: Connection, pragma: str) -> str:
        """Return the name of the column that is the rowid, as its alias."""
        columns = connection.exec_driver_sql(f"PRAGMA {pragma}").all()
        keys = [column for column in columns if column[5]]
        alone = len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER"
        return str(keys[0][1]) if alone else "rowid"

    def predicate(self, index: Index) -> ColumnElement[bool] | None:
        where: ColumnElement[bool] | None = index.dialect_options["sqlite"]["where"]
        return where

    def read_plan(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> Plan:
        printed = "\n".join(row["detail"] for row in rows)
        return Plan(frozenset(_USED.findall(printed)), "TEMP B-TREE" in printed)

    def misplaced_time(self, connection: Connection, column: Column[Any]) -> str | None:
        is_other = type_coerce(column, String).not_like("____-__-__ __:__:__%")
        other = select(type_coerce(column, String)).where(column.is_not(None), is_other).limit(1)
        return connection.execute(other).scalar()

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        own = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        _set_busy_timeout(connection, time // timedelta(milliseconds=1))
        try:
            yield
        finally:
            _set_busy_timeout(connection, int(own))


def _set_busy_timeout(connection: Connection, milliseconds: int) -> None:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")


def _column(part: Any, rowid: str) -> IndexColumn:
    names = {_ROWID: rowid, _EXPRESSION: "an expression"}
    return IndexColumn(str(names.get(part[1], part[2])), bool(part[3]))
