"""How many rows the open transaction of a connection has locked, on MySQL and MariaDB."""

from __future__ import annotations

from random import uniform
from uuid import uuid4

from sqlalchemy import Connection

#: How often to ask MariaDB for a list that is newer than the question, and the longest
#: pause before: of random length, so that two tests do not ask in step.
_LOOKS, _PAUSE = 60, 0.8


def locked_rows(connection: Connection, table: str) -> int:
    """Count the rows of a table that this transaction has locked.

    MariaDB counts locks; a row may have a lock in each index that led to it.
    """
    if connection.dialect.name == "mysql":
        return int(
            connection.exec_driver_sql(
                "SELECT COUNT(*) FROM performance_schema.data_locks WHERE "
                "lock_type = 'RECORD' AND index_name = 'PRIMARY' "
                f"AND thread_id = PS_CURRENT_THREAD_ID() AND object_name = '{table}'"
            ).scalar_one()
        )
    # The server answers from a copy, which is not renewed while others ask for it. A copy
    # made since then shows this very statement.
    mark = uuid4().hex
    for _ in range(_LOOKS):
        pause = uniform(0.12, _PAUSE)
        connection.exec_driver_sql(f"DO SLEEP({pause:.3f}), '{mark}'")
        locks = connection.exec_driver_sql(
            "SELECT trx_rows_locked FROM information_schema.innodb_trx WHERE "
            f"trx_mysql_thread_id = CONNECTION_ID() AND LOCATE('{mark}', trx_query) > 0"
        ).scalar()
        if locks is not None:
            return int(locks)
    raise AssertionError("MariaDB's list of transactions stayed old")
