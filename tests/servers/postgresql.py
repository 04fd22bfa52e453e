"""Find or start PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL

from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, Binaries
from tests.servers.provider import NetworkProvider
from tests.servers.server import Server, ask, connected, quoted

# Where Debian keeps the programs of each version, outside of the PATH.
DEBIAN_FOLDER = Path("/usr/lib/postgresql")

# Data that is thrown away needs no disk; workers and their owners need connections.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "listen_addresses": LOCALHOST,
    # No socket: the path of a temporary folder may be too long for one.
    "unix_socket_directories": "",
}


@dataclass(frozen=True, kw_only=True)
class PostgreSQLServer(Server):
    """Create databases from template0, whatever else is connected to template1."""

    names_query = "SELECT datname FROM pg_database WHERE starts_with(datname, :prefix)"

    def _create(self, name: str) -> None:
        with connected(self.url) as connection:
            connection.exec_driver_sql(
                f"CREATE DATABASE {quoted(connection, name)} ENCODING 'UTF8' TEMPLATE template0"
            )

    def _drop(self, name: str) -> None:
        with connected(self.url) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {quoted(connection, name)} WITH (FORCE)")


@dataclass(frozen=True, kw_only=True)
class PostgreSQLBinaries(Binaries):
    """Run the programs of one folder."""

    folder: Path
    # Immediate shutdown; SIGKILL would leave the server's shared memory behind.
    stop_signal: signal.Signals = signal.SIGQUIT
    pid_file: ClassVar[str] = "data/postmaster.pid"
    durable: ClassVar[tuple[str, ...]] = (
        *("--fsync=on", "--synchronous_commit=on", "--full_page_writes=on"),
    )

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return (
            *(str(self.folder / "initdb"), "--pgdata", str(folder / "data"), "--no-sync"),
            *("--username", PostgreSQL.user, "--auth", "trust"),
            *("--encoding", "UTF8", "--locale", "C"),
        )

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        return (
            *(str(self.folder / "postgres"), "-D", str(folder / "data"), f"--port={port}"),
            *settings,
        )


class PostgreSQL(NetworkProvider):
    """Search for a PostgreSQL server."""

    name = "postgresql"
    server = PostgreSQLServer
    packages = ("postgresql",)
    user = "postgres"
    port = 5432
    database = "postgres"
    folder_query = "SHOW data_directory"

    def version_of(self, url: URL) -> str:
        return ask(url, "SHOW server_version")

    def binaries(self) -> PostgreSQLBinaries:
        for folder in program_folders():
            if all((folder / program).exists() for program in ("initdb", "postgres")):
                return PostgreSQLBinaries(folder=folder, user=unprivileged_user())
        raise NotHere("initdb and postgres are not on this machine")


def program_folders() -> list[Path]:
    """List where PostgreSQL's programs may be, the PATH first, then the newest version."""
    on_path = shutil.which("postgres")
    newest_first = sorted(
        DEBIAN_FOLDER.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    return [*([Path(on_path).resolve().parent] if on_path else []), *newest_first]


def unprivileged_user() -> str | None:
    """Name the user that runs PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)
