"""Many rows, their plans, and the rows that a statement reads or locks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import uniform
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, Executable, text

from tests.support import heard

PARAMETERS: dict[str, Any] = {
    "sa_jobqueue_limit": 50,
    "sa_jobqueue_owner": "w",
    "sa_jobqueue_owner_date": datetime(2030, 1, 1, tzinfo=UTC),
    "sa_jobqueue_keys": [1, 2, 3],
    "sa_jobqueue_priority": 0,
    "sa_jobqueue_after": -40_000,
}


def numbers(connection: Connection, rows: int) -> str:
    """Write a sub-select `n` that counts from 1 to `rows`, in the database's own way."""
    alias = connection.dialect.name
    if alias == "postgresql":
        return f"(SELECT generate_series(1, {rows}) AS number) AS n"
    if alias == "sqlite":
        return (
            "(WITH RECURSIVE c(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM c "
            f"WHERE number < {rows}) SELECT number FROM c) AS n"
        )
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    powers = range(len(str(rows - 1)))
    tables = ", ".join(f"({digits}) AS t{power}" for power in powers)
    value = " + ".join(f"t{power}.d * {10**power}" for power in powers)
    return f"(SELECT {value} + 1 AS number FROM {tables} HAVING number <= {rows}) AS n"


def fill(engine: Engine, insert: str, rows: int) -> None:
    """Insert rows by one statement, and have the planner know them."""
    with engine.begin() as connection:
        connection.execute(text(f"{insert} FROM {numbers(connection, rows)}"))


def analyze(engine: Engine, table: str) -> None:
    word = "ANALYZE TABLE" if engine.dialect.name in ("mysql", "mariadb") else "ANALYZE"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"{word} {table}"))


def explained(connection: Connection, statement: Executable) -> str:
    """Return the plan of a statement, as the database prints it."""
    compiled = statement.compile(  # type: ignore[attr-defined]  # all our statements can
        dialect=connection.dialect, compile_kwargs={"render_postcompile": True}
    )
    parameters = compiled.construct_params(
        {**compiled.params, **{k: v for k, v in PARAMETERS.items() if k in compiled.params}}
    )
    alias = connection.dialect.name
    how = {"postgresql": "EXPLAIN (FORMAT JSON)", "sqlite": "EXPLAIN QUERY PLAN"}
    how |= {"mysql": "EXPLAIN FORMAT=TRADITIONAL", "mariadb": "EXPLAIN"}
    if compiled.positional:
        given: Any = tuple(parameters[name] for name in compiled.positiontup)
    else:
        given = parameters
    rows = connection.exec_driver_sql(f"{how[alias]} {compiled}", given).all()
    if alias == "postgresql":
        return json.dumps(rows[0][0])
    return "\n".join(str(tuple(row)) for row in rows)


def sorts_the_queue(plan: str, engine: Engine) -> bool:
    """Tell whether a plan sorts more than the claimed rows themselves."""
    if engine.dialect.name == "postgresql":
        # The outermost sort puts the claimed rows, at most the limit, into order.
        return any(
            node["Node Type"] == "Sort" and node.get("Parent Relationship") != "Outer-most"
            for node in nodes(json.loads(plan)[0]["Plan"], top=True)
        )
    return "filesort" in plan or "TEMP B-TREE" in plan


def nodes(plan: dict[str, Any], *, top: bool = False) -> Iterator[dict[str, Any]]:
    if top:
        plan = {**plan, "Parent Relationship": "Outer-most"}
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def locking(statements: list[Executable], engine: Engine) -> Executable:
    """Pick the statement that finds rows: the first, or the statement after the priorities."""
    found = [
        one
        for one in statements
        if re.search(
            r"sa_jobqueue_limit|LIMIT %s|LIMIT \?",
            str(one.compile(dialect=engine.dialect)),  # type: ignore[attr-defined]  # as above
        )
        and "sa_jobqueue_after" not in one.compile(dialect=engine.dialect).params  # type: ignore[attr-defined]
    ]
    return found[0]


def rows_read(connection: Connection, table: str = "") -> int:
    """Count the rows that this connection has read; on PostgreSQL from a table, by now.

    SQLite counts operations from the first call on; a row that is read takes ten or so.
    """
    alias = connection.dialect.name
    if alias == "postgresql":
        asked = (
            "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables "
            f"WHERE relid = '{table}'::regclass"
        )
        return int(connection.exec_driver_sql(asked).scalar_one()) if table else 0
    if alias == "sqlite":
        return _rows_of_sqlite(connection)
    status = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
    return sum(int(value) for _, value in status)


def _rows_of_sqlite(connection: Connection) -> int:
    noted = connection.info
    if "rows_read" not in noted:
        noted["rows_read"] = 0

        def note() -> int:
            noted["rows_read"] += 100
            return 0  # go on

        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(note, 1_000)
    return int(noted["rows_read"])


def rows_read_before(connection: Connection) -> int:
    """Count the rows that earlier transactions have read; on PostgreSQL since version 15."""
    if connection.dialect.name != "postgresql":
        return rows_read(connection)
    if (connection.dialect.server_version_info or ()) < (15,):
        return 0
    connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    connection.commit()
    read = "sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))"
    counted = f"SELECT coalesce({read}, 0) FROM pg_stat_user_tables"
    return int(connection.exec_driver_sql(counted).scalar_one())


def rows_read_of_tables(connection: Connection) -> int:
    """Count the rows that this transaction has read, on PostgreSQL too."""
    if connection.dialect.name != "postgresql":
        return rows_read(connection)
    read = "sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))"
    counted = f"SELECT coalesce({read}, 0) FROM pg_stat_xact_user_tables"
    return int(connection.exec_driver_sql(counted).scalar_one())


@contextmanager
def plans(engine: Engine, *tables: str) -> Iterator[list[str]]:
    """Explain each statement on tables just before it runs, with the settings that it runs with."""
    explain = {"postgresql": "EXPLAIN (FORMAT JSON)", "sqlite": "EXPLAIN QUERY PLAN"}
    found: list[str] = []

    def note(_c: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("EXPLAIN", "SET STATEMENT")):  # MariaDB explains no SET STATEMENT
            return
        if any(f" {table}" in statement for table in tables):
            asking = cursor.connection.cursor()
            asking.execute(f"{explain.get(engine.dialect.name, 'EXPLAIN')} {statement}", parameters)
            rows = asking.fetchall()
            found.extend(_steps(engine.dialect.name, rows))

    with heard(engine, "before_cursor_execute", note):
        yield found


def _steps(alias: str, rows: Any) -> Iterator[str]:
    """Write each step that reads a table as words, the table's scans by the word SCAN."""
    if alias == "postgresql":
        plan = rows[0][0] if isinstance(rows[0][0], list) else json.loads(rows[0][0])
        for node in nodes(plan[0]["Plan"]):
            if "Relation Name" in node:
                scan = "SCAN" if node["Node Type"] == "Seq Scan" else node["Node Type"]
                yield f"{scan} {node['Relation Name']} {node.get('Index Name')}"
    else:
        yield from (str(tuple(row)) for row in rows)


def assert_by_index(engine: Engine, steps: list[str], *tables: str) -> None:
    """Refuse scans of tables, and walks along their primary keys."""
    assert steps
    if engine.dialect.name == "postgresql":
        assert not [step for step in steps if "SCAN" in step or "pkey" in step], steps
    if engine.dialect.name == "sqlite":
        scans = [step for step in steps if any(f"SCAN {table}" in step for table in tables)]
        assert not scans, steps
        assert not [step for step in steps if "SEARCH" in step and "INDEX ix_" not in step], steps


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
