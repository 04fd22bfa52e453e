"""MySQL and MariaDB: which server and database this is, and which connections are alive."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import BigInteger, Connection, bindparam, text
from sqlalchemy.exc import DBAPIError

from ..owner_liveness import OwnerState, Process, Server

#: The server's list of connections.
PROCESS_LIST = "information_schema.PROCESSLIST"

_NOT_ALLOWED = 1227

_RESTART_TOLERANCE = 2  # seconds

#: The variables that only nodes of a cluster have set: Galera, Group Replication.
_IN_CLUSTER = ("wsrep_provider", "group_replication_group_name")


def server_of(
    connection: Connection, title: str, variables_table: str, identified_by: Sequence[str]
) -> Server:
    """Identify the server and database.

    Args:
        title: the kind of database.
        variables_table: the table of the server's variables.
        identified_by: the variables that differ from server to server.
    """
    asked = (*identified_by, *_IN_CLUSTER)
    found = connection.execute(
        text(
            "SELECT LOWER(variable_name), variable_value, "
            "IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE()) "
            f"FROM {variables_table} WHERE variable_name IN :names"
        ).bindparams(bindparam("names", asked, expanding=True))
    ).all()
    variables = {name: value for name, value, _ in found}
    return Server.identified_by(
        title,
        *(variables.get(name, "") for name in identified_by),
        found[0][2],
        alone=all(variables.get(name, "") in {"", "none"} for name in _IN_CLUSTER),
    )


def own_process(connection: Connection, status_table: str) -> Process:
    """Return how the server lists this connection, with the time of the server's start.

    Args:
        status_table: the table with the server's uptime.
    """
    # Both times are of this statement, so their difference neither jitters nor changes
    # when the clock is set.
    own = connection.exec_driver_sql(
        "SELECT CONNECTION_ID(), UNIX_TIMESTAMP() - CAST(variable_value AS SIGNED) "
        f"FROM {status_table} WHERE variable_name = 'Uptime'"
    ).one()
    return Process(*map(int, own))


def process_states(
    connection: Connection, own: Process, processes: Collection[Process]
) -> dict[Process, OwnerState] | None:
    """Look connections up in the server's list; None: the list hides even this connection.

    Args:
        own: this connection, by :func:`own_process`.
    """
    listed = _listed(connection, {own.id, *(process.id for process in processes)})
    if own.id not in listed:
        return None
    gone = OwnerState.DEAD if sees_everybody(connection) else OwnerState.UNKNOWN

    def state(process: Process) -> OwnerState:
        if abs(process.started - own.started) > _RESTART_TOLERANCE:
            return OwnerState.DEAD
        return OwnerState.ALIVE if process.id in listed else gone

    return {process: state(process) for process in processes}


def _listed(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return which of the connections are in the list."""
    found = connection.execute(
        text(f"SELECT id FROM {PROCESS_LIST} WHERE id IN :ids").bindparams(
            bindparam("ids", tuple(ids), expanding=True, type_=BigInteger)
        )
    )
    return set(found.scalars())


def sees_everybody(connection: Connection) -> bool:
    """Tell whether this connection has the PROCESS privilege.

    Found out by a query that needs it. SHOW GRANTS is not enough: a connection keeps the
    privileges with which it began, even when the user's privileges change later.
    """
    try:
        connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.INNODB_CMP")
    except DBAPIError as error:
        if error.orig is None or error.orig.args[:1] != (_NOT_ALLOWED,):
            raise
        return False
    return True
