"""A server that nobody else uses, that loses nothing it has committed, and that may crash."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL

from tests.chaos.fault import BEYOND_LEASE, NOTHING, Fault
from tests.servers import PROVIDERS
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, Binaries, Keeper, make_folder
from tests.servers.provider import NetworkProvider, ask, binaries_of
from tests.servers.server import connected
from tests.support import until

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: What makes a COMMIT outlive a crash; the options of the tests' other servers do without.
DURABLE = {
    "postgresql": ("--fsync=on", "--synchronous_commit=on", "--full_page_writes=on"),
    "mysql": ("--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=ON"),
}
DURABLE["mariadb"] = DURABLE["mysql"]

LISTENING = {
    "postgresql": "--listen_addresses={}",
    "mysql": "--bind-address={}",
    "mariadb": "--bind-address={}",
}

PID_FILE = {"postgresql": "data/postmaster.pid", "mysql": "pid", "mariadb": "pid"}


@dataclass(frozen=True, kw_only=True)
class OwnBinaries(Binaries):
    """A database's programs with more options, and more variables for the server alone."""

    programs: Binaries
    options: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return self.programs.initialize(folder)

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return ("env", *variables, *self.programs.serve(folder, port=port), *self.options)


class OwnServer:
    """Start, crash and restart a server.

    Args:
        disk: the folder that its data is in.
        variables: the environment of the server.
        near: an address that it listens on besides localhost, for the network behind it.

    Attributes:
        in_trouble: it is down, or was a moment ago.
    """

    def __init__(
        self, database: str, disk: Path | None, variables: Mapping[str, str], near: str | None
    ) -> None:
        provider = PROVIDERS[database]
        assert isinstance(provider, NetworkProvider)
        self._provider = provider
        self._near = near
        programs = binaries_of(provider)
        addresses = ",".join([LOCALHOST, *([near] if near else [])])
        self._binaries = OwnBinaries(
            programs=programs,
            environment=programs.environment,
            user=programs.user,
            stop_signal=programs.stop_signal,
            options=(*DURABLE[database], LISTENING[database].format(addresses)),
            variables=variables,
        )
        self.in_trouble = False
        self._server = provider.start(self._binaries, origin="started", within=disk)

    @property
    def version(self) -> str:
        """As the server reports it."""
        return self._server.version

    def create_database(self, name: str) -> URL:
        """Create a database, with a table that fills the disk, open to the network behind."""
        url = self._server.create_database(name)
        if self._near is not None:
            self._let_in(self._near)
        return url

    def _let_in(self, near: str) -> None:
        network = near.rpartition(".")[0]
        with connected(self._server.url) as connection:
            if self._provider.name == "postgresql":
                hba = connection.exec_driver_sql("SHOW hba_file").scalar_one()
                with open(hba, "a", encoding="ascii") as file:
                    file.write(f"host all all {network}.0/24 trust\n")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
                return
            user = f"'root'@'{network}.%'"
            connection.exec_driver_sql(f"CREATE USER {user} IDENTIFIED BY ''".replace("%", "%%"))
            connection.exec_driver_sql(
                f"GRANT ALL ON *.* TO {user} WITH GRANT OPTION".replace("%", "%%")
            )

    def crash(self) -> None:
        """Kill all of its processes at once."""
        self.in_trouble = True
        with suppress(FileNotFoundError):  # it has ended by itself
            self._kill(int(self._path(PID_FILE[self._provider.name]).read_text().split()[0]))

    def _kill(self, process: int) -> None:
        for number in (process, *children_of(process)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def revive(self) -> None:
        """Start it again if it has ended, or does not answer."""
        if self._keeper.running:
            try:
                ask(self._server.url, "SELECT 1")
                return
            except NotHere:
                self.crash()
        until(lambda: not self._keeper.running)
        port = self._server.url.port
        self._server = self._provider.serve(
            self._binaries, self._keeper.folder, origin="started", port=port
        )

    def calm(self) -> None:
        """It may be hit again."""
        self.in_trouble = False

    def stop(self) -> None:
        """Stop it, and remove its folder."""
        self._server.stop()

    @property
    def _keeper(self) -> Keeper:
        assert self._server.keeper is not None
        return self._server.keeper

    def _path(self, name: str) -> Path:
        return self._keeper.folder / name


class OwnFolder:
    """SQLite's: nothing in it crashes, and nothing is started again."""

    version = f"SQLite {sqlite3.sqlite_version}"

    def __init__(self, disk: Path | None) -> None:
        self.in_trouble = False
        self._folder = make_folder("sqlite", within=disk)

    def create_database(self, name: str) -> URL:
        """Create a file in WAL mode."""
        file = self._folder / f"{name}.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        return URL.create("sqlite", database=str(file))

    def revive(self) -> None:
        """Do nothing."""

    def calm(self) -> None:
        """It may be hit again."""
        self.in_trouble = False

    def stop(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)


class Crash(Fault):
    """Kill the server, and start it again a moment later."""

    name = "crash"

    def __init__(self, server: OwnServer) -> None:
        self._server = server

    def happen(self, storm: Storm) -> str:
        if self._server.in_trouble:
            return NOTHING
        self._server.crash()
        storm.later(storm.dice.uniform(0, BEYOND_LEASE), partial(self._revive, storm))
        return "a crash of the server"

    def _revive(self, storm: Storm) -> None:
        self._server.revive()
        storm.later(BEYOND_LEASE, self._server.calm)


def children_of(process: int) -> list[int]:
    """List the processes that a process has started, and theirs."""
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        for child in listed.read_text().split():
            found += [int(child), *children_of(int(child))]
    return found
