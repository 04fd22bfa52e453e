"""What the doctor asks of MySQL and MariaDB: plans as a table, and the list of transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Connection, Select, Table, text
from sqlalchemy.exc import DBAPIError

from ..databases.connections import qualified
from ..databases.innodb import DENIED, has_code
from ..errors import UnsupportedDatabase
from .examination import (
    Examination,
    Finding,
    IndexColumn,
    Plan,
    Query,
    ServerIndex,
    Snapshot,
    explained,
)

# The oldest transaction of others, in the server's own time zone. An XA transaction that was
# prepared has no connection any more.
_SNAPSHOT = """
SELECT t.trx_mysql_thread_id, p.user, p.host, p.command, p.time, TIMESTAMPDIFF(
  SECOND, t.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))
FROM information_schema.innodb_trx t
LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY t.trx_started LIMIT 1
"""

_SETTINGS = """
SHOW VARIABLES WHERE Variable_name IN (
  'log_bin', 'binlog_format', 'sql_select_limit')
"""

#: No limit.
_UNLIMITED = 2**64 - 1

#: Storage engines without transactions.
_NOT_ROLLED_BACK = ("MyISAM", "Aria", "MEMORY", "CSV")

_ENGINE = text("""
SELECT engine FROM information_schema.tables
WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table
""")

_TIME_DIGITS = text("""
SELECT datetime_precision FROM information_schema.columns
WHERE table_schema = COALESCE(:schema, DATABASE())
  AND table_name = :table AND column_name = :column
""")


class InnoDBExamination(Examination):
    """What the doctor asks of both."""

    # -- a table ----------------------------------------------------------

    explain_words = "EXPLAIN"
    poolers = "ProxySQL or MaxScale"

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        name = qualified(connection, table).replace("%", "%%")
        listed = connection.exec_driver_sql(f"SHOW INDEX FROM {name}").mappings().all()
        parts: dict[str, list[Any]] = defaultdict(list)
        for row in sorted(listed, key=lambda row: int(row["Seq_in_index"])):
            parts[row["Key_name"]].append(row)
        key = tuple(_column(row) for row in parts.get("PRIMARY", ()))
        return [
            ServerIndex(
                name=name,
                columns=tuple(_column(row) for row in rows),
                implied=() if name == "PRIMARY" else key,
                unique=not int(rows[0]["Non_unique"]),
                ordered=rows[0]["Index_type"] == "BTREE",
                unusable=_unusable(rows[0]),
            )
            for name, rows in parts.items()
        ]

    def digits_kept(self, connection: Connection, column: Column[Any]) -> int | None:
        schema = connection.schema_for_object(column.table)
        names = {"schema": schema, "table": column.table.name, "column": column.name}
        digits = connection.execute(_TIME_DIGITS, names).scalar()
        return None if digits is None else int(digits)

    def storage(self, connection: Connection, table: Table) -> Iterator[Finding]:
        names = {"schema": connection.schema_for_object(table), "table": table.name}
        engine = connection.execute(_ENGINE, names).scalar()
        if engine in _NOT_ROLLED_BACK:
            yield Finding.warning(
                f"the table {table.fullname} is kept by {engine}, which has no transactions: a "
                "claim or a finish that is rolled back stays written",
                f"ALTER TABLE {table.fullname} ENGINE = InnoDB",
            )

    def plan(self, connection: Connection, query: Query, favoured: str | None = None) -> Plan:
        if favoured and isinstance(query.statement, Select):
            quoted = connection.dialect.identifier_preparer.quote(favoured)
            # SQLAlchemy formats the hint with %.
            hint = f"FORCE INDEX ({quoted})".replace("%", "%%")
            query = replace(query, statement=query.statement.with_hint(query.table, hint))
        rows = explained(connection, self.explain_words, query)
        if not {"table", "key", "rows", "Extra"} <= set(rows[0] if rows else ()):
            raise UnsupportedDatabase(f"{self.database} prints plans in a form of its own")
        ours = [row for row in rows if row["table"] == query.table.name] or rows
        return Plan(
            indexes=frozenset(row["key"] for row in ours if row["key"]),
            sorts=any("filesort" in (row["Extra"] or "") for row in ours),
            rows=max(int(row["rows"] or 0) for row in ours),
        )

    # -- the server -------------------------------------------------------

    def snapshot_isolation(self, level: str, strategy: str) -> Finding:
        if strategy == "update_then_select":
            return Finding.warning(
                f"transactions begin as {level}: update_then_select deadlocks in it, up to 1,216 "
                "times for 1,000 jobs, wherever anything was read or written before the claim",
                'create_engine(.., isolation_level="READ COMMITTED"), or claim first in each '
                "transaction: a claim that begins a transaction makes it READ COMMITTED",
            )
        return Finding(
            f"transactions begin as {level}; a claim makes those that it begins READ COMMITTED"
        )

    def settings(self, connection: Connection) -> Iterator[Finding]:
        found: dict[str, Any] = dict(map(tuple, connection.exec_driver_sql(_SETTINGS)))
        if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
            yield Finding.error(
                "binlog_format is STATEMENT: the server refuses each claim, since claims write in "
                "READ COMMITTED (error 1665)",
                "SET GLOBAL binlog_format = 'ROW', also in the server's file of options, and "
                "connect anew",
            )
        if (most := int(found.get("sql_select_limit", _UNLIMITED))) < _UNLIMITED:
            yield Finding.error(
                f"sql_select_limit is {most:,}: a finish of more jobs sees so many of them, and "
                "takes the claims of the others for lost",
                "SET GLOBAL sql_select_limit = DEFAULT, or leave it out of the application's "
                "sessions, and connect anew",
            )

    def snapshots(self, connection: Connection) -> Iterator[Snapshot | Finding]:
        try:
            oldest = connection.exec_driver_sql(_SNAPSHOT).first()
        except DBAPIError as error:
            if not has_code(error, DENIED):
                raise
            user = _user(connection)
            yield Finding.unchecked(
                f"{user} may not read information_schema.innodb_trx",
                f"GRANT PROCESS ON *.* TO {user}",
            )
            return
        if oldest is not None:
            number, user, host, command, time, age = oldest
            holder = f"connection {number} of {user}@{host} ({command} for {time} s)"
            ending = f"end the transaction: KILL {number}; read long reports from a replica"
            if not number:
                holder, ending = (
                    "a prepared XA transaction",
                    "XA RECOVER, then XA COMMIT or ROLLBACK",
                )
            yield Snapshot(holder, timedelta(seconds=max(int(age), 0)), ending)


class MySQLExamination(InnoDBExamination):
    """What the doctor asks of MySQL."""

    explain_words = "EXPLAIN FORMAT=TRADITIONAL"  # the default may be another one


def _column(row: Any) -> IndexColumn:
    name = row["Column_name"] or row.get("Expression") or "?"
    prefix = f"({row['Sub_part']})" if row["Sub_part"] else ""
    return IndexColumn(f"{name}{prefix}", row["Collation"] == "D")


def _unusable(row: Any) -> str | None:
    if row.get("Visible", "YES") == "NO":
        return "it is invisible to the optimizer: ALTER TABLE .. ALTER INDEX .. VISIBLE"
    if row.get("Ignored", "NO") == "YES":
        return "it is ignored by the optimizer: ALTER TABLE .. ALTER INDEX .. NOT IGNORED"
    return None


def _user(connection: Connection) -> str:
    name, _, host = connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one().rpartition("@")
    return f"'{name}'@'{host}'"
