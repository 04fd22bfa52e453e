"""A node: a server process in a folder, that is killed and brought back on the same data."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, Binaries, Keeper, initialize, last_lines
from tests.support import until

#: Below the ports that the system gives to clients, who would else take that of a killed node.
PORTS = range(20_000, 32_000)


@dataclass
class Node:
    """A server.

    Attributes:
        name: in reports.
        folder: its data, its log, and the file "pid".
        port: where it answers.
        binaries: how it is served.
    """

    name: str
    folder: Path
    port: int
    binaries: Binaries
    keeper: Keeper | None = None

    def initialize(self) -> None:
        """Make the data folder."""
        initialize(self.binaries, self.folder)

    def start(self) -> None:
        """Start the server, which does not answer yet."""
        self.keeper = Keeper(self.binaries, self.folder, port=self.port)

    def require_running(self) -> None:
        """Raise NotHere, with the end of its log, if the server has ended."""
        if self.keeper is None or not self.keeper.running:
            raise NotHere(f"{self.name} has ended: {last_lines(self.folder)}")

    def kill(self) -> None:
        """Kill the server, and wait until it is gone; its data stays."""
        keeper = self.keeper
        assert keeper is not None
        os.kill(int((self.folder / "pid").read_text().split()[0]), signal.SIGKILL)
        until(lambda: not keeper.running)
        keeper.end()
        self.keeper = None

    def stop(self) -> None:
        """Stop the server, if it runs, and remove its folder."""
        if self.keeper is not None:
            self.keeper.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            if probe.connect_ex((LOCALHOST, port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise NotHere(f"fewer than {count} ports are free")
