"""InnoDB: EXPLAIN as a table, counters of the session, and what locks can be seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from random import uniform
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from sqlalchemy import Connection, Executable, Select, Table, text
from sqlalchemy.exc import DBAPIError

from ..capabilities import Version
from ..examination import (
    Answer,
    Examination,
    IndexColumn,
    Plan,
    ServerIndex,
    explained,
    qualified,
)

if TYPE_CHECKING:
    from .database import InnoDB

#: No privilege for this table, column, command; none for this database; none such as PROCESS.
_DENIED = {1142, 1143, 1044, 1227}

_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")

#: innodb_trx is a copy, made anew when nobody has asked for a tenth of a second. The pauses
#: before it is asked for, in seconds, have no fixed length: two who ask would go in step.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.15, 0.6

#: How often it is asked for, where others who ask keep it old.
_COPIES = 10

# By the server's own list of transactions, in which this one is the last to begin:
# the times are in the server's time zone, whatever the session's.
_SNAPSHOT = "TIMESTAMPDIFF(SECOND, MIN(trx_started), MAX(trx_started)), COUNT(*)"

# A row may be counted once for each index that led to it.
_LOCKED = "MAX(IF(trx_mysql_thread_id = CONNECTION_ID(), trx_rows_locked, 0))"

#: From here on purge is behind: the figure at which its manual begins to worry.
_HISTORY = 1_000_000


class InnoDBExamination(Examination):
    """What MySQL and MariaDB have in common."""

    database: InnoDB

    poolers: ClassVar[str] = "ProxySQL or MaxScale"
    ending_snapshots: ClassVar[str] = (
        "end the transaction: in information_schema.innodb_trx it has the oldest trx_started, and "
        "KILL takes its trx_mysql_thread_id; read long reports from a replica"
    )

    #: What comes before a statement to have its plan as a table.
    explain_words: ClassVar[str] = "EXPLAIN"

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
                ordered=rows[0]["Index_type"] == "BTREE",
                unusable=_unusable(rows[0]),
            )
            for name, rows in parts.items()
        ]

    def plan(
        self,
        connection: Connection,
        statement: Executable,
        parameters: Mapping[str, Any],
        table: Table,
        favoured: str | None = None,
    ) -> Plan:
        if favoured and isinstance(statement, Select):
            quoted = connection.dialect.identifier_preparer.quote(favoured)
            statement = statement.with_hint(table, f"FORCE INDEX ({quoted})")
        rows = explained(connection, self.explain_words, statement, parameters)
        ours = [row for row in rows if row["table"] == table.name] or rows
        return Plan(
            text="\n".join(str(row) for row in rows),
            indexes=frozenset(row["key"] for row in ours if row["key"]),
            sorts=any("filesort" in (row["Extra"] or "") for row in ours),
            rows=max(int(row["rows"] or 0) for row in ours),
        )

    # -- what a claim costs ---------------------------------------------

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        asked = ", ".join(f"@@{name}" for name in _TIMEOUTS)
        own = connection.exec_driver_sql(f"SELECT {asked}").one()
        seconds = max(1, round(time.total_seconds()))
        _set(connection, dict.fromkeys(_TIMEOUTS, seconds))
        try:
            yield
        finally:
            _set(connection, dict(zip(_TIMEOUTS, own, strict=True)))

    def rows_read(self, connection: Connection, table: Table) -> int | None:
        status = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
        return sum(int(value) for _, value in status)

    def rows_locked(self, connection: Connection, table: Table) -> int | Answer | None:
        listed = self._listed(connection, _LOCKED)
        return listed if isinstance(listed, Answer) else int(listed[0])

    def _listed(self, connection: Connection, asked: str) -> Sequence[Any] | Answer:
        """Ask the server's list of transactions, once it shows what this connection does now.

        The list holds the statement of each transaction, so a mark in ours tells a copy that
        was made since from an older one, which others keep alive as long as they ask for it.
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
            "the server's list of transactions stayed as old as others' last look at it",
            "examine again when nobody reads information_schema.innodb_trx all the time",
        )

    # -- the server -----------------------------------------------------

    def isolation(self, level: str, strategy: str) -> Answer:
        if level not in ("REPEATABLE READ", "SERIALIZABLE"):
            return super().isolation(level, strategy)
        if strategy == "update_then_select":
            return Answer.warning(
                f"transactions begin as {level}: update_then_select deadlocks in it, up to 1,216 "
                "times for 1,000 jobs, wherever anything was read or written before the claim",
                'create_engine(.., isolation_level="READ COMMITTED"), or claim first in each '
                "transaction: a claim that begins one makes it READ COMMITTED",
            )
        return Answer(
            f"transactions begin as {level}; a claim that begins one makes it READ COMMITTED"
        )

    def processes(self, connection: Connection) -> Answer | None:
        if self.database.sees_everybody(connection):
            return Answer("connections of all users are visible")
        user = _user(connection)
        return Answer.warning(
            f"{user} does not see other users' connections: a connection_owner() that is gone is "
            "not told from a hidden one, and waits for the lease. An Owner(engine) is not affected",
            f"GRANT PROCESS ON *.* TO {user}, or claim with Owner(engine)",
        )

    def oldest_snapshot(self, connection: Connection, table: Table) -> timedelta | Answer | None:
        # A read, so that this transaction is listed too: the youngest of them.
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
        """Hold one transaction over several statements, in AUTOCOMMIT too."""
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
            f"{message}: purge is behind, and claims walk over what it has not removed",
            "end old transactions, which keep it from purging; then more "
            "innodb_purge_threads, or fewer writes",
        )

    def _history(self, connection: Connection) -> int:
        raise NotImplementedError

    def _denied(
        self, connection: Connection, error: DBAPIError, what: str, privilege: str
    ) -> Answer:
        """Say that a privilege is missing.

        Raises:
            DBAPIError: something else went wrong.
        """
        if error.orig is None or error.orig.args[:1] == () or error.orig.args[0] not in _DENIED:
            raise error
        user = _user(connection)
        scope = "*.*" if privilege == "PROCESS" else what
        return Answer.unchecked(
            f"{user} may not read {what}", f"GRANT {privilege} ON {scope} TO {user}"
        )


class MySQLExamination(InnoDBExamination):
    """What MySQL tells: each lock, in performance_schema."""

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


#: Beyond, each lock is not listed any more: that took 12 seconds for 200,000, and they
#: were held meanwhile. The transaction knows their number.
_MANY_LOCKS = 10_000

# The rows are in the index that has most of its entries locked.
_DATA_LOCKS = text("""
SELECT COUNT(*) FROM (
  SELECT index_name FROM performance_schema.data_locks
  WHERE object_name = :table AND lock_type = 'RECORD' AND thread_id = (
    SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()
  ) LIMIT :many
) AS locks GROUP BY index_name
""")


class MariaDBExamination(InnoDBExamination):
    """What MariaDB tells: how many locks a transaction has."""

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


def _set(connection: Connection, variables: Mapping[str, Any]) -> None:
    values = ", ".join(f"SESSION {name} = {int(value)}" for name, value in variables.items())
    connection.exec_driver_sql(f"SET {values}")


def _user(connection: Connection) -> str:
    name, _, host = connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one().rpartition("@")
    return f"'{name}'@'{host}'"
