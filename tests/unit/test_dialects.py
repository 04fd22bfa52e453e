"""Dialect and version tell what a server can do; unknown and old servers are refused."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import UnsupportedDatabase, claim_statements, is_transient
from tests.models import Email
from tests.unit.mapping import dialect


def server(alias: str, *version: int) -> Any:
    """Make the dialect of a server of some version, as after the first connect."""
    if alias in ("mysql", "mariadb"):
        suffix = "-MariaDB" if alias == "mariadb" else ""
        return mysql_server(".".join(map(str, version)) + suffix)
    made = dialect(alias, *version)
    made.dbapi = SimpleNamespace(sqlite_version_info=version)
    return made


def mysql_server(reported: str) -> Any:
    """Make the dialect of a MySQL or MariaDB that reports this version to a mysql:// URL."""
    made = dialect("mysql")
    made.server_version_info = made._parse_server_version(reported)  # as the first connect does
    return made


def statements(server: Any, strategy: str) -> list[str]:
    """Write the statements of a claim."""
    written: list[Any] = claim_statements(Email, dialect=server, strategy=strategy)
    return [str(each.compile(dialect=server)) for each in written]


# Versions


@pytest.mark.parametrize(
    ("served", "strategy"),
    [
        (server("postgresql", 14), "skip_locked"),
        (server("postgresql", 17, 2), "skip_locked"),
        (server("mysql", 5, 7, 44), "update_then_select"),
        (server("mysql", 8, 0, 0), "update_then_select"),
        (server("mysql", 8, 0, 1), "skip_locked"),
        (server("mysql", 9, 1, 0), "skip_locked"),
        (server("mariadb", 10, 3, 39), "update_then_select"),
        (server("mariadb", 10, 5, 29), "update_then_select"),
        (server("mariadb", 10, 6, 0), "skip_locked"),
        (mysql_server("5.5.5-10.6.18-MariaDB-log"), "skip_locked"),  # a prefix for old replicas
        (server("mariadb", 11, 8, 2), "skip_locked"),
        (server("sqlite", 3, 35, 0), "compare_and_set"),
        (server("sqlite", 3, 50, 4), "compare_and_set"),
    ],
)
def test_auto_picks_by_what_the_version_can_do(served: Any, strategy: str) -> None:
    assert statements(served, "auto") == statements(served, strategy)


def no_strategy(strategy: str) -> str:
    return rf"'{strategy}' cannot run .* strategy='auto'"


@pytest.mark.parametrize(
    ("served", "strategy", "words"),
    [
        (server("postgresql", 13, 22), "auto", r"PostgreSQL 13\.22 .* PostgreSQL 14 or later"),
        (server("mysql", 5, 6, 51), "auto", r"MySQL 5\.6\.51 is too old.* MySQL 5\.7 or later"),
        (server("mariadb", 10, 2, 44), "auto", r"MariaDB 10\.2\.44 .* MariaDB 10\.3 or later"),
        (server("sqlite", 3, 34, 1), "auto", r"3\.34\.1 is too old.* 3\.35 .*Upgrade the server"),
        *(
            (old, strategy, rf"{strategy}.*SKIP LOCKED; use strategy='auto'")
            for old in (server("mysql", 5, 7, 44), server("mariadb", 10, 5, 29))
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
        ("mssql", "auto", "'mssql'.*mariadb, mysql, postgresql, sqlite.*entry point"),
        ("oracle", "auto", "'oracle'.*mariadb, mysql, postgresql, sqlite.*entry point"),
    ],
)
def test_what_a_server_cannot_do_is_refused_with_the_way_out(
    served: Any, strategy: str, words: str
) -> None:
    with pytest.raises(UnsupportedDatabase, match=words):
        claim_statements(Email, dialect=served, strategy=strategy)


# Errors


def driver_error(*said: Any, **code: Any) -> Exception:
    """Make an error as a driver raises it, with its code in an attribute of the driver's."""
    error = Exception(*said)
    vars(error).update(code)
    return error


def adapted(cause: Exception) -> Exception:
    """Wrap a driver's error as SQLAlchemy's asyncio adapters do."""
    error = Exception("adapted")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (driver_error(1213, "Deadlock found when trying to get lock"), True),
        (driver_error(1205, "Lock wait timeout exceeded"), True),
        (driver_error(1020, "Record has changed since last read"), True),
        (driver_error(pgcode="40001"), True),
        (driver_error(pgcode="40P01"), True),
        (driver_error(sqlstate="40001"), True),
        (adapted(driver_error(sqlstate="40P01")), True),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_BUSY), True),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_BUSY_SNAPSHOT), True),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_LOCKED), True),
        (driver_error(1062, "Duplicate entry '1213' for key"), False),
        (driver_error(1146, "Table 'email' doesn't exist"), False),
        (driver_error(pgcode="23505"), False),
        (driver_error(pgcode="42P01"), False),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_CONSTRAINT), False),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_READONLY), False),
        (driver_error(sqlite_errorcode=sqlite3.SQLITE_CONSTRAINT_UNIQUE), False),
        (sqlite3.OperationalError("no code"), False),
        (Exception(), False),
    ],
    ids=repr,
)
def test_deadlocks_conflicts_and_busy_databases_are_transient_and_nothing_else(
    error: Exception, transient: bool
) -> None:
    assert is_transient(DBAPIError("UPDATE email", {}, error)) is transient
