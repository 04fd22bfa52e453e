"""PostgreSQL: which server and database this is, and which connections are alive."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import BigInteger, Connection, bindparam, text

from ..owner_liveness import OwnerState, Process, Server


def _microseconds(time: str) -> str:
    return f"CAST(round(extract(epoch FROM {time}) * 1000000) AS bigint)"


_DATABASE = f"""
SELECT (SELECT oid FROM pg_database WHERE datname = current_database()) AS database,
  pg_is_in_recovery() AS is_standby,
  has_table_privilege('pg_catalog.pg_locks', 'SELECT') AS sees_locks,
  {_microseconds("pg_postmaster_start_time()")} AS server_started,
  (SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(name), 'EXECUTE'), false))
    FROM unnest(ARRAY['pg_control_system()', 'pg_control_checkpoint()', 'pg_control_recovery()'])
    AS name) AS may_ask
"""

# A promoted standby has its primary's identifier, but a timeline of its own. Before its
# first checkpoint, only min_recovery_end_timeline shows the new timeline.
_CONTROL = """
SELECT system_identifier, greatest(timeline_id, min_recovery_end_timeline)
FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()
"""

# pg_stat_activity is copied once for a transaction: connections that were made after the
# copy would look dead.
_FORGET_COPY = "SELECT pg_stat_clear_snapshot()"

_PROCESSES = text(f"""
SELECT pid, {_microseconds("backend_start")} AS started,
  {_microseconds("pg_postmaster_start_time()")} AS server_started
FROM pg_stat_activity WHERE pid = pg_backend_pid() OR pid IN :pids
""").bindparams(bindparam("pids", expanding=True, type_=BigInteger))


def server_of(connection: Connection, title: str) -> Server | None:
    """Identify the server and database; None: pg_locks is hidden from this user."""
    answer = connection.exec_driver_sql(_DATABASE).one()
    if not answer.sees_locks:
        return None
    if answer.may_ask:
        server = tuple(connection.exec_driver_sql(_CONTROL).one())
    else:  # the same until the server is restarted
        server = (answer.server_started,)
    return Server.identified_by(title, *server, answer.database, alone=not answer.is_standby)


def own_process(connection: Connection) -> Process | None:
    """Return how the server lists this connection; None: the list hides it."""
    own = connection.execute(_PROCESSES, {"pids": []}).one()
    # Hidden after SET ROLE. Or the clock was set back since the server started: then
    # process_states() would take the connection for one from before that start.
    if own.started is None or own.started < own.server_started:
        return None
    return Process(own.pid, own.started)


def process_states(
    connection: Connection, processes: Collection[Process]
) -> dict[Process, OwnerState] | None:
    """Look connections up in pg_stat_activity; None: the list hides even this connection."""
    connection.exec_driver_sql(_FORGET_COPY)
    asked = {"pids": [process.id for process in processes]}
    listed = connection.execute(_PROCESSES, asked).all()
    if not listed:
        return None
    started = {row.pid: row.started for row in listed}
    return {process: _state(process, started, listed[0].server_started) for process in processes}


def _state(process: Process, started: dict[int, int | None], server_started: int) -> OwnerState:
    if process.started < server_started or process.id not in started:
        return OwnerState.DEAD
    seen = started[process.id]
    if seen is None:  # another user's connection, of which we see only the number
        return OwnerState.UNKNOWN
    return OwnerState.ALIVE if seen == process.started else OwnerState.DEAD
