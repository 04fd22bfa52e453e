"""MariaDB: SKIP LOCKED since 10.6, no FOR UPDATE OF, no RETURNING beside an index hint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

from .capabilities import Version
from .connections import listen_to
from .innodb import InnoDB

#: The SELECT of the open transaction's level: from a copy, which the server renews only if nobody
#: has read it for a tenth of a second. It shows the statement of each transaction, and so, by the
#: mark, whether it is new.
_LEVEL = """
SELECT trx_isolation_level FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id = CONNECTION_ID() AND LOCATE('{mark}', trx_query) > 0
"""


class MariaDB(InnoDB):
    """MariaDB 10.3 and later, under ``mariadb://`` and ``mysql://`` URLs alike."""

    title = "MariaDB"
    examined_by = "examination.innodb:InnoDBExamination"
    changed_by = "schema_changes.innodb:MariaDBSchemaChanges"
    minimum = (10, 3)
    isolation_variable: ClassVar[str] = "@@tx_isolation"
    level_question: ClassVar[str] = _LEVEL

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.at_least(10, 6)
        self.descending_indexes = self.at_least(10, 8)

    def past_snapshot(self, connection: Connection) -> Mapping[str, Any]:
        if self._has_snapshot_isolation is None:
            asked = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
            found = connection.exec_driver_sql(asked).first()
            self._has_snapshot_isolation = found is not None
        if not self._has_snapshot_isolation:
            return {}
        listen_to(connection, "before_cursor_execute", _without_setting, retval=True)
        return {_OPTION: True}

    #: Asked once for each server: each series knows the setting from another version on.
    _has_snapshot_isolation: bool | None = None

    statement_limit: ClassVar[str] = "max_statement_time"
    limit_unit: ClassVar[timedelta] = timedelta(seconds=1)
    global_variables: ClassVar[str] = "information_schema.GLOBAL_VARIABLES"
    global_status: ClassVar[str] = "information_schema.GLOBAL_STATUS"

    # server_uid alone is not enough. It is made of a network card's address and the port:
    # containers on two hosts may have the same, and older servers have none.
    identified_by: ClassVar[tuple[str, ...]] = (
        "server_uid",
        "server_id",
        "hostname",
        "port",
        "datadir",
    )

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        # server_version_info may begin with 5.5.5, a prefix for the replication protocol.
        version = getattr(dialect, "_mariadb_normalized_version_info", None)
        return version or getattr(dialect, "server_version_info", None)


# With innodb_snapshot_isolation, which is on by default since MariaDB 11.6, a REPEATABLE READ
# transaction that has read before may not lock a row that others have changed since then:
# error 1020, and the server has rolled the transaction back, so no statement can be tried
# again. It protects writes that were worked out from what was read. The verbs need no such
# protection: they name what they expect of a row, and lock it as it is now.
#
# So in a transaction that a verb did not begin, the statements of verbs run without the
# setting. It holds on for the caller's own statements.

#: The name of the execution option by which a statement is run without the setting.
_OPTION = "sa_jobqueue_past_snapshot"

_PREFIX = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "

_LOCKING = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def _without_setting(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> tuple[str, Any]:
    options = {} if context is None else context.execution_options
    if _OPTION in options and _LOCKING.match(statement):
        statement = _PREFIX + statement
    return statement, parameters
