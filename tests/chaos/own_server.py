"""A server that nobody else uses, that loses nothing it has committed, and that may crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL

from tests.chaos.fault import Outage
from tests.servers import PROVIDERS, Server
from tests.servers.keeping import LOCALHOST, free_ports, initialize, make_folder
from tests.servers.node import Node
from tests.servers.provider import NetworkProvider

if TYPE_CHECKING:
    from tests.chaos.storm import Storm


class Own:
    """A server, or SQLite's folder: nothing in that crashes, and nothing is started again.

    Attributes:
        in_trouble: it is down, or was a moment ago.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.in_trouble = False

    def revive(self) -> None:
        """Start it again if it has ended, or does not answer."""

    def stop(self) -> None:
        """Stop it, and remove its folder."""
        self.server.stop()


def own_folder(disk: Path | None) -> Own:
    """Make a folder for SQLite."""
    url = URL.create("sqlite", database=str(make_folder("sqlite", within=disk) / "admin.db"))
    return Own(PROVIDERS["sqlite"].found(url, origin="started"))


class OwnServer(Own):
    """Start, crash and restart a server.

    Args:
        disk: the folder that its data is in.
        variables: the environment of the server.
        near: an address that it listens on besides localhost, for the network behind it.
    """

    def __init__(
        self, database: str, disk: Path | None, variables: Mapping[str, str], near: str | None
    ) -> None:
        provider = PROVIDERS[database]
        assert isinstance(provider, NetworkProvider)
        found = provider.programs()
        addresses = LOCALHOST if near is None else f"{LOCALHOST},{near}"
        listening = "listen_addresses" if database == "postgresql" else "bind-address"
        options = (*found.durable, f"--{listening}={addresses}")
        folder, (port,) = make_folder(database, user=found.user, within=disk), free_ports(1)
        programs = replace(found, options=options, variables=variables)
        self._node = Node("its server", folder, provider.url_at(port), programs)
        try:
            initialize(programs, folder)
            self._node.start()
            super().__init__(provider.found(self._node.url, origin="started"))
        except BaseException:
            self.stop()
            raise
        if near is not None:
            self._let_in(near.rpartition(".")[0])

    def _let_in(self, network: str) -> None:
        if self.server.database == "postgresql":
            with open(self._node.ask("SHOW hba_file"), "a", encoding="ascii") as file:
                file.write(f"host all all {network}.0/24 trust\n")
            self._node.tell("SELECT pg_reload_conf()")
        else:
            user = f"'root'@'{network}.%%'"
            self._node.tell(
                f"CREATE USER {user} IDENTIFIED BY ''",
                f"GRANT ALL ON *.* TO {user} WITH GRANT OPTION",
            )

    def crash(self) -> None:
        """Kill all of its processes at once."""
        self._node.kill()

    def revive(self) -> None:
        if self._node.running and self._node.answers():
            return
        self._node.kill()
        self._node.start()

    def stop(self) -> None:
        self._node.stop()


class Crash(Outage):
    """Kill the server, and start it again a moment later."""

    name = "crash"

    def begin(self, storm: Storm) -> str:
        self.place.crash()
        return "a crash of the server"

    def end(self, storm: Storm) -> None:
        self.place.revive()
