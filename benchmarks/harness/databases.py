"""The databases that are measured: found, started or installed as the tests do it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, NullPool, create_engine, event, make_url

from benchmarks.adapters.adapter import prepare_sqlite
from tests.servers import provide

INNODB = ("mysql", "mariadb")

#: Statements that make commits outlive a power cut.
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

#: Queries that tell whether commits outlive a power cut.
INNODB_DURABILITY = (
    "SHOW VARIABLES WHERE variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')"
)
DURABILITY = {
    "postgresql": "SELECT name, setting FROM pg_settings "
    "WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
    "mysql": INNODB_DURABILITY,
    "mariadb": INNODB_DURABILITY,
    "sqlite": "SELECT 'synchronous', synchronous FROM pragma_synchronous",
}

#: Statements that have a server do at once what it would do during the next measurement.
SETTLE = {"postgresql": ("VACUUM ANALYZE", "CHECKPOINT")}

#: Statements that do what a server would have done while a table grew. InnoDB analyzes a table by
#: itself once a tenth of it has changed.
REST = {
    **dict.fromkeys(INNODB, ("ANALYZE TABLE bench_job, bench_small",)),
    "sqlite": ("PRAGMA wal_checkpoint(TRUNCATE)",),
}

#: How many versions InnoDB has still to purge; so few are other people's.
HISTORY = (
    "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
)
FEW = 1_000
PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Database:
    """A database of our own, empty at first.

    Attributes:
        name: the kind: postgresql, mysql, mariadb or sqlite.
        url: an SQLAlchemy URL.
    """

    name: str
    url: str

    def settle(self) -> None:
        """Put the server to rest before a drain: what a drain left must not burden the next."""
        self._run(*SETTLE.get(self.name, ()))

    def rest(self) -> None:
        """Vacuum, analyze, purge, checkpoint: whatever the database knows of these."""
        self.settle()
        self._run(*REST.get(self.name, ()))
        if self.name in INNODB:
            with self._connection() as connection:
                _wait_for_purge(connection)

    @contextmanager
    def snapshot(self, wanted: bool) -> Iterator[None]:
        """Keep an old snapshot open, if wanted: a transaction that has read once."""
        if not wanted:
            yield
            return
        # SQLite's driver begins no transaction for a read, so BEGIN is written here.
        lite = self.name == "sqlite"
        # On PostgreSQL any read takes a snapshot, and a peer has other tables.
        table = "pg_class" if self.name == "postgresql" else "bench_job"
        with self._connection("AUTOCOMMIT" if lite else "REPEATABLE READ") as connection:
            if lite:
                connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").all()
            yield
            if lite:
                connection.exec_driver_sql("ROLLBACK")

    def conditions(self) -> dict[str, Any]:
        """Return the server's version, and how durable commits are."""
        with self._connection() as connection:
            version = connection.dialect.server_version_info or ()
            durability = connection.exec_driver_sql(DURABILITY[self.name]).all()
        return {
            "database": self.name,
            "server": ".".join(map(str, version)),
            "durability": {name: str(value) for name, value in durability},
        }

    def make_durable(self) -> None:
        """Make the server's commits outlive a power cut."""
        self._run(*DURABLE.get(self.name, ()))

    def _run(self, *statements: str) -> None:
        if statements:
            with self._connection() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)

    @contextmanager
    def _connection(self, level: Any = "AUTOCOMMIT") -> Iterator[Connection]:
        engine = create_engine(self.url, isolation_level=level, poolclass=NullPool)
        if self.name == "sqlite":
            event.listen(engine, "connect", lambda driver, _: prepare_sqlite(driver))
        with engine.connect() as connection:
            yield connection


@contextmanager
def empty_database(name: str, url: str | None = None) -> Iterator[Database]:
    """Create an empty database, and drop it afterwards.

    Args:
        url: of a server to use instead of the server that the tests would use.

    Raises:
        ServerUnavailable: no server can be had; the message says the way out.
    """
    server = provide(name, url)
    if server.origin in ("started", "installed"):  # for tests, which need no durable commits
        Database(name, _text(server.url)).make_durable()
    created = f"sa_jobqueue_bench_{secrets.token_hex(4)}"
    try:
        made = server.create_database(created)
        try:
            yield Database(name, _text(made))
        finally:
            server.drop_database(created)
    finally:
        server.stop()


def _text(url: URL) -> str:
    return make_url(url).render_as_string(hide_password=False)


def _wait_for_purge(connection: Connection) -> None:
    deadline = time.monotonic() + PATIENCE
    while connection.exec_driver_sql(HISTORY).scalar_one() > FEW:
        if time.monotonic() > deadline:
            return  # somebody else holds a snapshot
        time.sleep(0.1)
