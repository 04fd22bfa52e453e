"""Three nodes of MariaDB with Galera: all take writes, and one at a time is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.clusters.cluster import Cluster
from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, free_ports, initialize
from tests.servers.mariadb import MariaDB
from tests.servers.node import Node

PACKAGES = ("mariadb-server", "galera-4", "rsync")
PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")

#: A node that is not ready refuses this with error 1047.
READY = (
    "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'wsrep_ready'"
)


class Galera(Cluster):
    """Three nodes."""

    name = "galera"
    provider = MariaDB()

    def start(self) -> None:
        if not PROVIDER.exists() or debian.which("rsync") is None:
            debian.install(*PACKAGES)
        if not PROVIDER.exists():
            raise NotHere(f"{' '.join(PACKAGES)} did not bring Galera")
        # The state transfer by rsync refuses to run as root.
        binaries = replace(self.provider.programs(), user="mysql")
        ports = free_ports(12)
        for number in range(3):
            options = tuple(options_of(*ports[number::3][1:], nodes=ports[3:6]))
            begins = () if self.nodes else ("--wsrep-new-cluster",)
            serving = replace(binaries, options=(*options, *begins))
            node = self.add(f"node {number + 1}", ports[number], serving)
            initialize(node.binaries, node.folder)
            self.nodes.append(node)
            self.revive(node)
            node.binaries = replace(binaries, options=options)
        self.title = f"Galera, {self.create_database(node)}, three nodes"

    def revive(self, node: Node) -> None:
        node.start(lambda: node.says(READY, "ON"))

    def settle(self) -> None:
        """Let the first node apply what the others have committed."""
        self.nodes[0].tell("SET SESSION wsrep_sync_wait = 1", "SELECT 1")


def options_of(group: int, increments: int, state: int, *, nodes: list[int]) -> Iterator[str]:
    """Give a node's options, by the ports of its group and of both of its state transfers.

    Args:
        nodes: the ports of all nodes' groups.
    """
    # What a killed process had committed is in the system's cache, which outlives it.
    yield "--innodb-flush-log-at-trx-commit=2"
    yield "--innodb-doublewrite=ON"
    yield "--binlog-format=ROW"
    yield "--innodb-autoinc-lock-mode=2"
    yield "--wsrep-on=ON"
    yield f"--wsrep-provider={PROVIDER}"
    addresses = ",".join(f"{LOCALHOST}:{port}" for port in nodes)
    yield f"--wsrep-cluster-address=gcomm://{addresses}"
    yield f"--wsrep-node-address={LOCALHOST}:{group}"
    yield (
        f"--wsrep-provider-options=base_port={group};"
        f"ist.recv_addr={LOCALHOST}:{increments};gcache.size=64M"
    )
    yield "--wsrep-sst-method=rsync"
    yield f"--wsrep-sst-receive-address={LOCALHOST}:{state}"
