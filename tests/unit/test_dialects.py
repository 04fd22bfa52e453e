"""Dialect and version tell what a server can do; unknown and old servers are refused."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Column, Computed, Integer, MetaData, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import (
    JobQueue,
    UnsupportedDatabase,
    claim_statements,
    is_transient,
)
from sa_jobqueue.dialects import Database, database_of_dialect, dialect_of
from tests.models import Email


def server(alias: str, *version: int) -> Dialect:
    """Make the dialect of a server of some version, as after the first connect."""
    if alias in ("mysql", "mariadb"):
        suffix = "-MariaDB" if alias == "mariadb" else ""
        return mysql_server(".".join(map(str, version)) + suffix)
    made: Any = dialect_of("postgresql+psycopg2" if alias == "postgresql" else alias)
    made.server_version_info = version
    made.dbapi = SimpleNamespace(sqlite_version_info=version)
    dialect: Dialect = made
    return dialect


def mysql_server(reported: str) -> Dialect:
    """Make the dialect of a MySQL or MariaDB that reports this version to a mysql:// URL."""
    made: Any = dialect_of("mysql+pymysql")
    made.server_version_info = made._parse_server_version(reported)  # as the first connect does
    dialect: Dialect = made
    return dialect


def automatic(dialect: Dialect) -> str:
    """Name the strategy that "auto" picks."""
    return JobQueue(Email).plan.built_for(database_of_dialect(dialect)).name


# Versions


@pytest.mark.parametrize(
    ("dialect", "strategy"),
    [
        (server("postgresql", 13), "skip_locked"),
        (server("postgresql", 17, 2), "skip_locked"),
        (server("mysql", 5, 7, 44), "update_then_select"),
        (server("mysql", 8, 0, 0), "update_then_select"),
        (server("mysql", 8, 0, 1), "skip_locked"),
        (server("mysql", 9, 1, 0), "skip_locked"),
        (server("mariadb", 10, 3, 39), "update_then_select"),
        (server("mariadb", 10, 5, 29), "update_then_select"),
        (server("mariadb", 10, 6, 0), "skip_locked"),
        (server("mariadb", 11, 8, 2), "skip_locked"),
        (server("sqlite", 3, 35, 0), "compare_and_set"),
        (server("sqlite", 3, 50, 4), "compare_and_set"),
    ],
    ids=lambda value: str(database_of_dialect(value)) if isinstance(value, Dialect) else value,
)
def test_auto_picks_by_what_the_version_can_do(dialect: Dialect, strategy: str) -> None:
    assert automatic(dialect) == strategy


def no_strategy(strategy: str) -> str:
    return rf"'{strategy}' cannot run .* strategy='auto'"


@pytest.mark.parametrize(
    ("dialect", "strategy", "words"),
    [
        (server("postgresql", 12, 22), "auto", r"PostgreSQL 12\.22 .* PostgreSQL 13 or later"),
        (server("mysql", 5, 6, 51), "auto", r"MySQL 5\.6\.51 is too old.* MySQL 5\.7 or later"),
        (server("mariadb", 10, 2, 44), "auto", r"MariaDB 10\.2\.44 .* MariaDB 10\.3 or later"),
        (server("sqlite", 3, 34, 1), "auto", r"3\.34\.1 is too old.* 3\.35 .*Upgrade the server"),
        *(
            (dialect, strategy, rf"{strategy}.*SKIP LOCKED; use strategy='auto'")
            for dialect in (server("mysql", 5, 7, 44), server("mariadb", 10, 5, 29))
            for strategy in ("skip_locked", "candidates", "held")
        ),
        ("postgresql", "compare_and_set", no_strategy("compare_and_set")),
        ("postgresql", "update_then_select", no_strategy("update_then_select")),
        ("mysql", "compare_and_set", no_strategy("compare_and_set")),
        *(
            ("sqlite", strategy, no_strategy(strategy))
            for strategy in ("skip_locked", "candidates", "held", "update_then_select")
        ),
        *((alias, "advisory", "use strategy='auto'") for alias in ("mysql", "mariadb", "sqlite")),
        ("mssql", "auto", "'mssql'.*mariadb, mysql, postgresql, sqlite.*register"),
        ("oracle", "auto", "'oracle'.*mariadb, mysql, postgresql, sqlite.*register"),
    ],
)
def test_what_a_server_cannot_do_is_refused_with_the_way_out(
    dialect: Any, strategy: str, words: str
) -> None:
    with pytest.raises(UnsupportedDatabase, match=words):
        claim_statements(Email, dialect=dialect, strategy=strategy)


def test_mariadb_is_known_behind_a_mysql_url() -> None:
    dialect = mysql_server("5.5.5-10.6.18-MariaDB-log")  # MariaDB adds the prefix for old replicas

    assert str(database_of_dialect(dialect)) == "MariaDB 10.6.18"


# Errors


class MySQLError(Exception):
    """The errors of the drivers of MySQL and MariaDB: the number comes first."""


class PostgreSQLError(Exception):
    """The errors of psycopg2, whose own classes do not allow to set the code."""

    def __init__(self, pgcode: str) -> None:
        super().__init__("as PostgreSQL says it")
        self.pgcode = pgcode


class SQLStateError(Exception):
    """The errors of psycopg and asyncpg."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("as PostgreSQL says it")
        self.sqlstate = sqlstate


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


def adapted(cause: Exception) -> Exception:
    """Wrap a driver's error as SQLAlchemy's asyncio adapters do."""
    error = Exception("adapted")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MySQLError(1213, "Deadlock found when trying to get lock"),
        MySQLError(1205, "Lock wait timeout exceeded"),
        MySQLError(1020, "Record has changed since last read"),
        PostgreSQLError("40001"),
        PostgreSQLError("40P01"),
        SQLStateError("40001"),
        adapted(SQLStateError("40P01")),
        sqlite_error(sqlite3.SQLITE_BUSY),
        sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT),
        sqlite_error(sqlite3.SQLITE_LOCKED),
    ],
    ids=repr,
)
def test_deadlocks_conflicts_and_busy_databases_are_transient(error: Exception) -> None:
    assert is_transient(DBAPIError("UPDATE email", {}, error))


@pytest.mark.parametrize(
    "error",
    [
        MySQLError(1062, "Duplicate entry '1213' for key"),
        MySQLError(1146, "Table 'email' doesn't exist"),
        PostgreSQLError("23505"),
        PostgreSQLError("42P01"),
        sqlite_error(sqlite3.SQLITE_CONSTRAINT),
        sqlite_error(sqlite3.SQLITE_READONLY),
        sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE),
        sqlite3.OperationalError("no code"),
        Exception(),
    ],
    ids=repr,
)
def test_other_errors_of_the_databases_are_not_transient(error: Exception) -> None:
    assert not is_transient(DBAPIError("UPDATE email", {}, error))


# Duplicates


@pytest.mark.parametrize("alias", ["mysql", "mariadb"])
def test_a_duplicate_sets_a_column_that_may_be_written_to_itself(alias: str) -> None:
    """The column is neither auto-incremented nor computed."""
    table = Table(
        "email",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("twice", Integer, Computed("2 * `group`")),
        Column("group", Integer),
    )
    dialect = server(alias, 10, 11, 0)

    statement = database_of_dialect(dialect).insert_new(table).compile(dialect=dialect)

    assert str(statement).endswith(" ON DUPLICATE KEY UPDATE `group` = `group`")


def test_a_database_that_cannot_tell_duplicates_refuses_to_skip_them() -> None:
    class Tortoise(Database):
        title = "Tortoise"

    with pytest.raises(UnsupportedDatabase, match=r"errors on Tortoise\. .* insert_new\(\)"):
        Tortoise(None).insert_new(Email)
