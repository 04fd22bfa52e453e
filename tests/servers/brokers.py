"""Brokers of messages, each started for a test, killed, and started again on the same data.

    with broker("nats") as server:
        server.kill()
        server.start(server.listens)

A broker that already runs on the machine is left alone, since these tests kill theirs. The programs
are searched for on the machine, then in Debian's packages.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.servers import debian
from tests.servers.keeping import LOCALHOST, Binaries, free_ports, make_folder
from tests.servers.node import Node
from tests.support import until


def nats(folder: Path, port: int) -> tuple[str, ...]:
    program = debian.find("nats-server", "nats-server")
    files = ("-sd", str(folder / "data"), "-P", str(folder / "pid"))
    return (program, "-js", "-a", LOCALHOST, "-p", str(port), *files)


def redis(folder: Path, port: int) -> tuple[str, ...]:
    program = debian.find("redis-server", "redis-server")
    place = f"--bind {LOCALHOST} --port {port} --dir {folder} --pidfile {folder}/pid"
    return (program, *f"{place} --appendonly yes --appendfsync always".split())


def rabbitmq(folder: Path, port: int) -> tuple[str, ...]:
    found = debian.find("rabbitmq-server", "rabbitmq-server")
    none = folder / "none"  # instead of the machine's own files, which name other ports
    variables = {
        "HOME": folder,  # of the nodes' common cookie
        "ERL_EPMD_ADDRESS": LOCALHOST,
        "RABBITMQ_CONF_ENV_FILE": none,
        "RABBITMQ_CONFIG_FILE": none,
        "RABBITMQ_ENABLED_PLUGINS_FILE": none,
        "RABBITMQ_LOG_BASE": folder / "logs",
        "RABBITMQ_MNESIA_BASE": folder / "data",
        "RABBITMQ_NODENAME": f"{folder.name}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": LOCALHOST,
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_PID_FILE": folder / "pid",
    }
    # Debian's program on the PATH changes the user, and forgets the environment.
    real = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    program = str(real) if real.exists() else found
    return ("env", *(f"{name}={value}" for name, value in variables.items()), program)


@dataclass(frozen=True, kw_only=True)
class BrokerBinaries(Binaries):
    """Run a broker by the command that one of the functions above returns."""

    command: Callable[[Path, int], tuple[str, ...]]

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return self.command(folder, port)


class Broker(Node):
    """A broker on a port of its own."""

    def listens(self) -> bool:
        """Tell whether the broker takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex((LOCALHOST, self.port)) == 0

    def restart(self) -> None:
        """Kill the broker, and start it again on its data."""
        self.kill()
        until(lambda: not self.listens())
        self.start(self.listens)


@contextmanager
def broker(name: str) -> Iterator[Broker]:
    """Run a broker: "nats", "rabbitmq" or "redis".

    Raises:
        NotHere: there is none here, and none can be installed.
    """
    command = {"nats": nats, "rabbitmq": rabbitmq, "redis": redis}[name]
    url = URL.create(name, host=LOCALHOST, port=free_ports(1)[0])
    server = Broker(name, make_folder(name), url, BrokerBinaries(command=command))
    try:
        server.start(server.listens)
        yield server
    finally:
        server.stop()
