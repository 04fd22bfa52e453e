"""MariaDB: statements that may change rows which others have changed since the snapshot.

With innodb_snapshot_isolation, which is on by default since MariaDB 11.6, a REPEATABLE READ
transaction that has read before may not lock a row that others have changed since then:
error 1020, and the server has rolled the transaction back, so no statement can be tried
again. It protects writes that were worked out from what was read. The verbs need no such
protection: they name what they expect of a row, and lock it as it is now.

So in a transaction that a verb did not begin, the statements of verbs run without the
setting. It holds on for the caller's own statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from ..connections import listen_to

#: The name of the execution option by which a statement is run without the setting.
OPTION = "sa_jobqueue_past_snapshot"

_PREFIX = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "

_LOCKING = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def past_snapshot(connection: Connection) -> Mapping[str, Any]:
    """Return the execution options of such statements on this connection."""
    listen_to(connection, "before_cursor_execute", _without_setting, retval=True)
    return {OPTION: True}


def has_snapshot_isolation(connection: Connection) -> bool:
    """Tell whether the server knows the setting: each series has it from another version on."""
    asked = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
    return connection.exec_driver_sql(asked).first() is not None


def _without_setting(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> tuple[str, Any]:
    options = {} if context is None else context.execution_options
    if OPTION in options and _LOCKING.match(statement):
        statement = _PREFIX + statement
    return statement, parameters
