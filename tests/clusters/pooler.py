"""PostgreSQL behind PgBouncer in transaction mode: both are killed.

PgBouncer keeps prepared statements since 1.21, so the drivers keep their own settings. It is
unpacked as MySQL is, with the libraries that it was built with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.chaos.fault import Fault
from tests.clusters.cluster import Cluster, KillNode
from tests.clusters.node import Node, free_ports
from tests.clusters.postgresql import (
    DATABASE,
    ask,
    durable_programs,
    kill_postgres,
    says,
    tell,
    url_of,
    wait_while_running,
)
from tests.servers import debian, pgbouncer
from tests.servers.given import REPOSITORY
from tests.servers.keeping import Binaries, make_folder

UNPACKED = REPOSITORY / ".servers" / "pgbouncer"

#: Seconds in which a server answers.
WITHIN = 60


@dataclass(frozen=True, kw_only=True)
class UnpackedPgBouncer(Binaries):
    """Run PgBouncer with the libraries beside it."""

    root: Path

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return (*self._command(), "--version")

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return (*self._command(), str(folder / pgbouncer.CONFIGURATION))

    def _command(self) -> tuple[str, ...]:
        usr = self.root / "usr"
        loader = next(usr.glob("lib*/ld-linux*.so.*"))
        libraries = next((usr / "lib").glob("*-linux-gnu*"))
        program = usr / "sbin" / "pgbouncer"
        return (str(loader), "--library-path", f"{libraries}", str(program))


class Pooler(Cluster):
    """One server and one pooler."""

    name = "pgbouncer"

    def __init__(self) -> None:
        self.nodes = []

    def start(self) -> None:
        if not UNPACKED.is_dir():
            debian.unpack_from_sid("pgbouncer", folder=UNPACKED)
        binaries = durable_programs()
        port, pooled = free_ports(2)
        folder = make_folder(self.name, user=binaries.user)
        self.server = Node("the server", folder, port, binaries)
        self.nodes.append(self.server)
        self.server.initialize()
        self._start(self.server)
        tell(port, f"CREATE DATABASE {DATABASE}")
        self._add_pooler(pooled, binaries.user)
        self._start(self.nodes[1])
        self.title = f"PostgreSQL {ask(port, 'SHOW server_version')} behind {self._version()}"

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def role(self, node: Node) -> str:
        return node.name

    def kill(self, node: Node) -> None:
        if node is not self.server:
            node.kill()
            return
        kill_postgres(node.folder / "data")
        assert node.keeper is not None
        node.keeper.end()
        node.keeper = None

    def revive(self, node: Node) -> None:
        self._start(node)

    @property
    def urls(self) -> Sequence[URL]:
        url = url_of(self.nodes[1].port, DATABASE)
        return [url, url.set(drivername="postgresql+psycopg")]

    @property
    def ways_of_owners(self) -> Sequence[URL]:
        return []

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self),)

    def _add_pooler(self, port: int, user: str | None) -> None:
        folder = make_folder(self.name, user=user)
        pgbouncer.write_configuration(
            folder,
            url_of(self.server.port),
            port=port,
            mode="transaction",
            user=user,
            pidfile=folder / "pid",
            default_pool_size=20,
            max_client_conn=200,
            max_prepared_statements=200,
            # By default nobody is let in for 15 seconds after the server was away.
            server_login_retry=1,
            ignore_startup_parameters="extra_float_digits,options,lock_timeout",
        )
        binaries = UnpackedPgBouncer(root=UNPACKED, user=user)
        self.nodes.append(Node("the pooler", folder, port, binaries))

    def _start(self, node: Node) -> None:
        node.start()
        wait_while_running(node, lambda: says(node.port, "SELECT 1", "1"), WITHIN)

    def _version(self) -> str:
        binaries = self.nodes[1].binaries
        return debian.run(*binaries.initialize(Path())).splitlines()[0]
