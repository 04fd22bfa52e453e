"""MySQL and MariaDB: the isolation level of a session, and that of the running transaction.

They differ after SET TRANSACTION, which changes the level of the next transaction alone. The
server tells everybody the level of their session. That of a transaction it tells only to users
with a privilege, so a claim that begins its transaction sets it, and need not ask.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from ..driver_errors import driver_errors

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

_CANNOT_CHANGE_NOW = 1568  # a transaction is already in progress

#: No privilege for the table, the column, the database; and no global one such as PROCESS.
DENIED = {1142, 1143, 1044, 1227}

_IS_READ_COMMITTED = "sa_jobqueue.is_read_committed"
_IS_HIDDEN = "sa_jobqueue.transactions_are_hidden"

#: MySQL: at once and exactly; it is on by default since 8.0.
OF_MYSQL = """
SELECT isolation_level FROM performance_schema.events_transactions_current
WHERE state = 'ACTIVE' AND thread_id = (
  SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()
)
"""

#: MariaDB: from a copy, which the server renews only if nobody has read it for a tenth of a
#: second. It shows the statement of each transaction, and so, by the mark, whether it is new.
OF_MARIADB = """
SELECT trx_isolation_level FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id = CONNECTION_ID() AND LOCATE('{mark}', trx_query) > 0
"""


def begin_read_committed(connection: Connection) -> bool:
    """Make the next transaction READ COMMITTED; False if one is open already.

    Only the server knows whether a transaction is open (a SELECT does not update the
    drivers' flags), so we try.
    """
    try:
        connection.exec_driver_sql(READ_COMMITTED)
    except Exception as error:  # a handle_error listener may raise what it likes
        if not _has_code(error, {_CANNOT_CHANGE_NOW}):
            raise
        return False
    return True


def session_is_read_committed(connection: Connection, variable: str) -> bool:
    """Tell whether the session's own level is READ COMMITTED; asked once per connection."""
    option = connection.get_execution_options().get("isolation_level")
    if option is not None:  # not remembered: the pool restores the connection's own level
        return bool(option == "READ COMMITTED")
    info = connection.info
    if _IS_READ_COMMITTED not in info:
        info[_IS_READ_COMMITTED] = session_level(connection, variable) == "READ COMMITTED"
    return bool(info[_IS_READ_COMMITTED])


def session_level(connection: Connection, variable: str) -> str:
    """Ask for the level that the session's transactions begin with."""
    asked = variable.replace("@@", "@@session.")
    return _words(connection.exec_driver_sql(f"SELECT {asked}").scalar_one())


def running_level(connection: Connection, question: str) -> str | None:
    """Ask for the level of the transaction that is open; None: the server does not tell."""
    info: dict[Any, Any] = connection.info
    if _IS_HIDDEN in info:
        return None
    try:
        told = connection.exec_driver_sql(question.format(mark=uuid4().hex)).scalar()
    except Exception as error:  # as above
        if not _has_code(error, DENIED):
            raise
        info[_IS_HIDDEN] = True
        return None
    return None if told is None else _words(told)


def _has_code(error: Exception, codes: set[int]) -> bool:
    """Tell whether the server's error is one of these."""
    return any(codes.intersection(cause.args[:1]) for cause in driver_errors(error))


def _words(level: Any) -> str:
    return str(level).replace("-", " ").upper()
