"""The databases that are measured: found, started or installed as the tests do it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, create_engine

from tests.servers import provide

#: How commits are made to outlive a power cut.
DURABLE = {
    "postgresql": (
        "ALTER SYSTEM SET fsync = on",
        "ALTER SYSTEM SET synchronous_commit = on",
        "ALTER SYSTEM SET full_page_writes = on",
        "SELECT pg_reload_conf()",
    ),
    "mysql": ("SET GLOBAL innodb_flush_log_at_trx_commit = 1", "SET GLOBAL sync_binlog = 1"),
    "mariadb": ("SET GLOBAL innodb_flush_log_at_trx_commit = 1",),
}

#: What tells whether they do.
DURABILITY = {
    "postgresql": "SELECT name, setting FROM pg_settings "
    "WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
    "mysql": "SHOW VARIABLES WHERE variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')",
    "mariadb": "SHOW VARIABLES WHERE variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')",
    "sqlite": "SELECT 'synchronous', synchronous FROM pragma_synchronous",
}


@contextmanager
def database(engine: str, url: str | None = None) -> Iterator[str]:
    """Give the URL of an empty database, dropped afterwards.

    Args:
        url: of a server to use instead of the one that the tests would use.

    Raises:
        ServerUnavailable: the engine cannot be had; the message says the way out.
    """
    server = provide(engine, url)
    if server.origin in ("started", "installed"):  # for tests, which need no durable commits
        make_durable(engine, server.url)
    name = f"sa_jobqueue_bench_{secrets.token_hex(4)}"
    try:
        made = server.create_database(name)
        try:
            yield made.render_as_string(hide_password=False)
        finally:
            server.drop_database(name)
    finally:
        server.stop()


def make_durable(engine: str, url: URL) -> None:
    """Have a server's commits outlive a power cut."""
    to = create_engine(url, isolation_level="AUTOCOMMIT")
    with to.connect() as connection:
        for statement in DURABLE.get(engine, ()):
            connection.exec_driver_sql(statement)
    to.dispose()


def durability(engine: str, url: str) -> dict[str, str]:
    """Tell how durable commits are."""
    to = create_engine(url)
    with to.connect() as connection:
        found = {name: str(value) for name, value in connection.exec_driver_sql(DURABILITY[engine])}
    to.dispose()
    return found
