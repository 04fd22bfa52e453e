"""Three nodes of MariaDB with Galera: all take writes, and one at a time is killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.clusters.innodb import DATABASE, InnoDBCluster, ask, tell, url_of
from tests.clusters.node import Node, free_ports
from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.innodb import own_tmpdir
from tests.servers.keeping import LOCALHOST, make_folder
from tests.servers.mariadb import MariaDBBinaries
from tests.support import until

PACKAGES = ("mariadb-server", "galera-4", "rsync")
PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")

#: The state transfer by rsync refuses to run as root.
USER = "mysql"

#: A node that is not ready refuses this with error 1047.
SYNCED = (
    "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'wsrep_ready'"
)

#: Seconds in which a node joins: it may copy the whole state.
JOINS_WITHIN = 120


@dataclass(frozen=True, kw_only=True)
class GaleraBinaries(MariaDBBinaries):
    """Serve a node.

    Attributes:
        own: the ports of this node's group, and of both of its state transfers.
        group: the ports of all nodes' groups.
        founder: this node begins the cluster, as long as it knows of none.
    """

    user: str | None = USER
    own: Sequence[int]
    group: Sequence[int]
    founder: bool

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return tuple(word for word in super().initialize(folder) if not word.startswith("--user"))

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        begins = self.founder and not (folder / "data" / "grastate.dat").exists()
        new = ("--wsrep-new-cluster",) if begins else ()
        return (self.daemon, "--no-defaults", *self._server(folder, port), *self._galera(), *new)

    def _server(self, folder: Path, port: int) -> Iterator[str]:
        yield f"--bind-address={LOCALHOST}"
        yield f"--datadir={folder / 'data'}"
        yield own_tmpdir(folder)
        yield f"--port={port}"
        yield f"--socket={folder / 'socket'}"
        yield f"--pid-file={folder / 'pid'}"
        yield "--innodb-buffer-pool-size=128M"
        # What a killed process had committed is in the system's cache, which outlives it.
        yield "--innodb-flush-log-at-trx-commit=2"

    def _galera(self) -> Iterator[str]:
        group, increments, state = self.own
        yield "--binlog-format=ROW"
        yield "--innodb-autoinc-lock-mode=2"
        yield "--wsrep-on=ON"
        yield f"--wsrep-provider={PROVIDER}"
        addresses = ",".join(f"{LOCALHOST}:{port}" for port in self.group)
        yield f"--wsrep-cluster-address=gcomm://{addresses}"
        yield f"--wsrep-node-address={LOCALHOST}:{group}"
        yield (
            f"--wsrep-provider-options=base_port={group};"
            f"ist.recv_addr={LOCALHOST}:{increments};gcache.size=64M"
        )
        yield "--wsrep-sst-method=rsync"
        yield f"--wsrep-sst-receive-address={LOCALHOST}:{state}"


class Galera(InnoDBCluster):
    """Three nodes."""

    name = "galera"

    def __init__(self) -> None:
        self.nodes = []

    def start(self) -> None:
        self._make_nodes()
        for node in self.nodes:
            node.initialize()
            node.start()
            self._wait_for(node)
        self.title = f"Galera, {ask(self.nodes[0], 'SELECT VERSION()')}, three nodes"
        tell(self.nodes[0], f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")

    def revive(self, node: Node) -> None:
        node.start()
        self._wait_for(node)

    @property
    def urls(self) -> Sequence[URL]:
        return [url_of(node.port, DATABASE, "mariadb") for node in self.nodes]

    def settle(self) -> None:
        """Let the first node apply what the others have committed."""
        tell(self.nodes[0], "SET SESSION wsrep_sync_wait = 1", "SELECT 1")

    def _make_nodes(self) -> None:
        installer, daemon = galera_programs()
        ports = free_ports(12)
        for number in range(3):
            binaries = GaleraBinaries(
                installer=installer,
                daemon=daemon,
                own=ports[number::3][1:],
                group=ports[3:6],
                founder=number == 0,
            )
            folder = make_folder(self.name, user=USER)
            self.nodes.append(Node(f"node {number + 1}", folder, ports[number], binaries))

    def _wait_for(self, node: Node) -> None:
        until(lambda: _is_synced(node), JOINS_WITHIN)


def galera_programs() -> tuple[str, str]:
    """Find mariadb-install-db and mariadbd, or install them, with Galera."""
    for again in (True, False):
        installer, daemon = debian.which("mariadb-install-db"), debian.which("mariadbd")
        if installer and daemon and PROVIDER.exists() and debian.which("rsync"):
            return installer, daemon
        if again:
            debian.install(*PACKAGES)
    raise NotHere(f"{' '.join(PACKAGES)} did not bring Galera")


def _is_synced(node: Node) -> bool:
    node.require_running()
    try:
        return ask(node, SYNCED) == "ON"
    except NotHere:
        return False
