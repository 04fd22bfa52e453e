"""What MySQL and MariaDB have in common: protocol, port, options."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import DBAPIError

from tests.servers.errors import NotHere
from tests.servers.given import DRIVERS
from tests.servers.keeping import LOCALHOST, Binaries
from tests.servers.provider import NetworkProvider
from tests.servers.server import Server, ask, connected, quoted

# Data that is thrown away needs no disk; performance_schema shows the tests the locks.
SETTINGS = (
    f"--bind-address={LOCALHOST}",
    "--max-connections=200",
    "--innodb-buffer-pool-size=128M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    "--sync-binlog=0",
    "--skip-log-bin",
    "--performance-schema=ON",
)


@dataclass(frozen=True, kw_only=True)
class InnoDBServer(Server):
    """Create databases in utf8mb4; end the connections to a database that is dropped."""

    names_query = (
        "SELECT schema_name FROM information_schema.schemata "
        "WHERE LEFT(schema_name, CHAR_LENGTH(:prefix)) = :prefix"
    )

    def _create(self, name: str) -> None:
        with connected(self.url) as connection:
            connection.exec_driver_sql(
                f"CREATE DATABASE {quoted(connection, name)} CHARACTER SET utf8mb4"
            )

    def _drop(self, name: str) -> None:
        with connected(self.url) as connection:
            # An open transaction's metadata lock would make the drop wait for it.
            end_connections(connection, name)
            connection.exec_driver_sql(f"DROP DATABASE {quoted(connection, name)}")


def end_connections(connection: Connection, name: str) -> None:
    """End every connection to a database."""
    query = text("SELECT id FROM information_schema.processlist WHERE db = :name")
    for number in connection.execute(query, {"name": name}).scalars().all():
        # The connection may have ended by itself meanwhile.
        with suppress(DBAPIError):
            connection.exec_driver_sql(f"KILL {int(number)}")


@dataclass(frozen=True, kw_only=True)
class InnoDBBinaries(Binaries):
    """Serve with the options that both servers know."""

    stop_signal: signal.Signals = signal.SIGKILL
    durable: ClassVar[tuple[str, ...]] = (
        *("--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=ON"),
    )

    def place(self, folder: Path) -> Iterator[str]:
        """Give the options that say where the data is.

        A MariaDB server that starts removes the temporary tables in its folder. In /tmp they may be
        those of another server, which ended by a segmentation fault in DESCRIBE.
        """
        yield f"--datadir={folder / 'data'}"
        yield f"--tmpdir={folder}"
        if self.user is None and os.geteuid() == 0:  # which both servers refuse unless told so
            yield "--user=root"

    def served(self, folder: Path, *, port: int) -> Iterator[str]:
        """Give the options of a server on this folder and port."""
        yield from SETTINGS
        yield from self.place(folder)
        yield f"--port={port}"
        yield f"--socket={folder / 'socket'}"
        yield f"--pid-file={folder / 'pid'}"


class InnoDBProvider(NetworkProvider):
    """Search for MySQL or MariaDB, which share the port 3306."""

    server = InnoDBServer
    user = "root"
    port = 3306
    database = "mysql"
    folder_query = "SELECT @@datadir"

    def version_of(self, url: URL) -> str:
        # Through the MySQL dialect: MariaDB's refuses to connect to MySQL at all.
        version = ask(url.set(drivername=DRIVERS["mysql"]), "SELECT VERSION()")
        answers = "mariadb" if "mariadb" in version.lower() else "mysql"
        if answers != self.name:
            raise NotHere(f"{answers} {version} answers there")
        return version
