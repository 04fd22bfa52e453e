"""MySQL and MariaDB: plans as a table, counters of the session, and the locks that are listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, timedelta
from random import uniform
from typing import Any, ClassVar
from uuid import uuid4

from sqlalchemy import Column, Connection, Executable, Select, Table, text
from sqlalchemy.exc import DBAPIError

from ..capabilities import Version
from ..examination import (
    Answer,
    Examination,
    IndexColumn,
    Plan,
    ServerIndex,
    qualified,
)
from .isolation import DENIED
from .lock_wait_limit import waiting_at_most
from .owner_liveness import sees_everybody

#: innodb_trx is a copy, which the server renews only if nobody has read it for a tenth of a
#: second. The pauses before a read, in seconds, are random: two readers with the same pause
#: would stay in step and keep the copy old.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.15, 0.6

#: How often we read it while other readers keep it old.
_COPIES = 10

# Both times are of the server's list, in which our transaction is the last to begin: its
# times are in the server's time zone, whatever the session's.
_SNAPSHOT = "TIMESTAMPDIFF(SECOND, MIN(trx_started), MAX(trx_started)), COUNT(*)"

# A row may be counted once for each index that was used to find it.
_LOCKED = "MAX(IF(trx_mysql_thread_id = CONNECTION_ID(), trx_rows_locked, 0))"

_TIME_DIGITS = text("""
SELECT datetime_precision FROM information_schema.columns
WHERE table_schema = COALESCE(:schema, DATABASE())
  AND table_name = :table AND column_name = :column
""")

#: From this length on purge is behind, according to the manual.
_HISTORY = 1_000_000


class InnoDBExamination(Examination):
    """The answers that MySQL and MariaDB have in common."""

    poolers: ClassVar[str] = "ProxySQL or MaxScale"
    ending_snapshots: ClassVar[str] = (
        "end the transaction: in information_schema.innodb_trx it has the oldest trx_started, and "
        "KILL takes its trx_mysql_thread_id; read long reports from a replica"
    )

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

    def time_digits(self, connection: Connection, column: Column[Any]) -> int | None:
        schema = connection.schema_for_object(column.table)
        names = {"schema": schema, "table": column.table.name, "column": column.name}
        digits = connection.execute(_TIME_DIGITS, names).scalar()
        return None if digits is None else int(digits)

    @contextmanager
    def favouring(
        self, connection: Connection, statement: Executable, table: Table, index: str | None
    ) -> Iterator[Executable]:
        if index and isinstance(statement, Select):
            quoted = connection.dialect.identifier_preparer.quote(index)
            # SQLAlchemy formats the hint with %.
            yield statement.with_hint(table, f"FORCE INDEX ({quoted})".replace("%", "%%"))
        else:
            yield statement

    def read_plan(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> Plan:
        ours = [row for row in rows if row["table"] == table.name] or rows
        return Plan(
            text="\n".join(str(row) for row in rows),
            indexes=frozenset(row["key"] for row in ours if row["key"]),
            sorts=any("filesort" in (row["Extra"] or "") for row in ours),
            rows=max(int(row["rows"] or 0) for row in ours),
        )

    # -- what a claim costs ---------------------------------------------

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        return waiting_at_most(connection, time)

    def rows_read(self, connection: Connection, table: Table) -> int | None:
        status = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
        return sum(int(value) for _, value in status)

    def rows_locked(self, connection: Connection, table: Table) -> int | Answer | None:
        listed = self._listed(connection, _LOCKED)
        return listed if isinstance(listed, Answer) else int(listed[0])

    def _listed(self, connection: Connection, asked: str) -> Sequence[Any] | Answer:
        """Read the server's list of transactions in a copy that is new enough.

        The list shows the statement of each transaction. So a random mark in our statement
        distinguishes a new copy from an old one, which lives as long as others read it.
        """
        mark = uuid4().hex
        try:
            for _ in range(_COPIES):
                pause = uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE)
                connection.exec_driver_sql(f"DO SLEEP({pause:.3f}), '{mark}'")
                listed = connection.exec_driver_sql(
                    f"SELECT {asked} FROM information_schema.innodb_trx "
                    f"HAVING SUM(LOCATE('{mark}', trx_query)) > 0"
                ).one_or_none()
                if listed is not None:
                    return listed
        except DBAPIError as error:
            return self._denied(connection, error, "information_schema.innodb_trx", "PROCESS")
        return Answer.unchecked(
            "other readers kept the server's copy of its list of transactions old",
            "examine again when nobody reads information_schema.innodb_trx all the time",
        )

    # -- the server -----------------------------------------------------

    def snapshot_isolation(self, level: str, strategy: str) -> Answer:
        if strategy == "update_then_select":
            return Answer.warning(
                f"transactions begin as {level}: update_then_select deadlocks in it, up to 1,216 "
                "times for 1,000 jobs, wherever anything was read or written before the claim",
                'create_engine(.., isolation_level="READ COMMITTED"), or claim first in each '
                "transaction: a claim that begins a transaction makes it READ COMMITTED",
            )
        return Answer(
            f"transactions begin as {level}; a claim makes those that it begins READ COMMITTED"
        )

    def processes(self, connection: Connection) -> Answer | None:
        if sees_everybody(connection):
            return Answer("connections of all users are visible")
        user = _user(connection)
        return Answer.warning(
            f"{user} does not see other users' connections: a connection_owner() that is gone "
            "looks like a hidden one, and waits for the lease. An Owner(engine) is not affected",
            f"GRANT PROCESS ON *.* TO {user}, or claim with Owner(engine)",
        )

    def oldest_snapshot(self, connection: Connection, table: Table) -> timedelta | Answer | None:
        # A read, so that the server lists our transaction too: it is the youngest.
        read = f"SELECT 1 FROM {qualified(connection, table).replace('%', '%%')} LIMIT 1"
        with self._transaction(connection):
            connection.exec_driver_sql(read).all()
            listed = self._listed(connection, _SNAPSHOT)
        if isinstance(listed, Answer):
            return listed
        seconds, transactions = listed
        return timedelta(seconds=int(seconds or 0)) if transactions > 1 else None

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """Inside, statements share one transaction, in AUTOCOMMIT too."""
        if not self.database.in_autocommit(connection):
            yield
            return
        connection.exec_driver_sql("START TRANSACTION")
        try:
            yield
        finally:
            connection.exec_driver_sql("ROLLBACK")

    def garbage(self, connection: Connection, table: Table) -> Answer | None:
        try:
            length = self._history(connection)
        except DBAPIError as error:
            return self._denied(connection, error, "information_schema.innodb_metrics", "PROCESS")
        message = f"history list length {length:,}"
        if length < _HISTORY:
            return Answer(message)
        return Answer.warning(
            f"{message}: purge is behind, and claims walk over the rows that it has not removed",
            "end old transactions, which keep it from purging; then set more "
            "innodb_purge_threads, or write less",
        )

    def _history(self, connection: Connection) -> int:
        raise NotImplementedError

    def _denied(
        self, connection: Connection, error: DBAPIError, what: str, privilege: str
    ) -> Answer:
        """Return the answer that a privilege is missing.

        Raises:
            DBAPIError: the error has another reason.
        """
        if error.orig is None or error.orig.args[:1] == () or error.orig.args[0] not in DENIED:
            raise error
        user = _user(connection)
        scope = "*.*" if privilege == "PROCESS" else what
        return Answer.unchecked(
            f"{user} may not read {what}", f"GRANT {privilege} ON {scope} TO {user}"
        )


class MySQLExamination(InnoDBExamination):
    """The answers of MySQL, which lists each lock in performance_schema."""

    explain_words: ClassVar[str] = "EXPLAIN FORMAT=TRADITIONAL"
    support_ends: ClassVar[Mapping[Version, date]] = {
        (5, 7): date(2023, 10, 31),
        (8, 0): date(2026, 4, 30),
        (8, 4): date(2032, 4, 30),
    }
    short_lived: ClassVar[frozenset[Version]] = frozenset(
        [(8, 1), (8, 2), (8, 3), *((9, minor) for minor in range(7))]
    )

    def rows_locked(self, connection: Connection, table: Table) -> int | Answer | None:
        if not self.database.at_least(8, 0, 1):
            return super().rows_locked(connection, table)
        try:
            found = connection.execute(_DATA_LOCKS, {"table": table.name, "many": _MANY_LOCKS})
            by_index = [int(locks) for (locks,) in found]
        except DBAPIError as error:
            return self._denied(connection, error, "performance_schema.*", "SELECT")
        if sum(by_index) < _MANY_LOCKS:
            return max(by_index, default=0)
        counted = super().rows_locked(connection, table)
        return counted if isinstance(counted, int) else max(by_index)

    def _history(self, connection: Connection) -> int:
        return int(
            connection.exec_driver_sql(
                "SELECT count FROM information_schema.innodb_metrics "
                "WHERE name = 'trx_rseg_history_len'"
            ).scalar_one()
        )


#: For more locks we do not read the list: that took 12 seconds for 200,000 locks, which were
#: held meanwhile. Then the list of transactions tells their number.
_MANY_LOCKS = 10_000

# A row is locked in several indexes: the index with the most locks counts each row.
_DATA_LOCKS = text("""
SELECT COUNT(*) FROM (
  SELECT index_name FROM performance_schema.data_locks
  WHERE object_name = :table AND lock_type = 'RECORD' AND thread_id = (
    SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()
  ) LIMIT :many
) AS locks GROUP BY index_name
""")


class MariaDBExamination(InnoDBExamination):
    """The answers of MariaDB, which tells only how many locks a transaction has."""

    support_ends: ClassVar[Mapping[Version, date]] = {
        (10, 3): date(2023, 5, 25),
        (10, 4): date(2024, 6, 18),
        (10, 5): date(2025, 6, 24),
        (10, 6): date(2026, 7, 6),
        (10, 11): date(2028, 2, 16),
        (11, 4): date(2029, 5, 29),
        (11, 8): date(2028, 6, 4),
    }
    short_lived: ClassVar[frozenset[Version]] = frozenset(
        [
            *((10, minor) for minor in range(7, 11)),
            *((11, minor) for minor in (0, 1, 2, 3, 5, 6, 7)),
        ]
    )

    def changed_rows(self, connection: Connection) -> Answer | None:
        asked = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
        setting = connection.exec_driver_sql(asked).first()
        if setting is None or setting[1] != "ON":
            return None
        return Answer(
            "innodb_snapshot_isolation is ON: in a transaction that has read, your own statements "
            "get error 1020 for rows that others have changed since; claims and finishes do not"
        )

    def _history(self, connection: Connection) -> int:
        status = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")
        return int(status.one()[1])


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
