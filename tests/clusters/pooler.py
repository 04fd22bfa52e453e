"""PostgreSQL behind PgBouncer in transaction mode: both are killed.

PgBouncer keeps prepared statements since 1.21, so the drivers keep their own settings. It is
unpacked as MySQL is, with the libraries that it was built with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import URL

from tests.clusters.cluster import DATABASE, Cluster
from tests.servers import debian
from tests.servers.given import REPOSITORY
from tests.servers.keeping import free_ports, initialize
from tests.servers.node import Node
from tests.servers.pgbouncer import PgBouncerBinaries
from tests.servers.postgresql import PostgreSQL

UNPACKED = REPOSITORY / ".servers" / "pgbouncer"

SETTINGS = {
    "pool_mode": "transaction",
    "default_pool_size": 20,
    "max_client_conn": 200,
    "max_prepared_statements": 200,
    # By default nobody is let in for 15 seconds after the server was away.
    "server_login_retry": 1,
    "ignore_startup_parameters": "extra_float_digits,options,lock_timeout",
}


class Pooler(Cluster):
    """One server and one pooler."""

    name = "pgbouncer"
    provider = PostgreSQL()

    def start(self) -> None:
        if not UNPACKED.is_dir():
            debian.unpack_from_sid("pgbouncer", folder=UNPACKED)
        command = debian.unpacked_program(UNPACKED, "pgbouncer")
        programs = self.provider.programs()
        port, pooled = free_ports(2)
        server = self.add("the server", port, replace(programs, options=programs.durable))
        initialize(programs, server.folder)
        server.start()
        binaries = PgBouncerBinaries(
            command=command, server=server.url, settings=SETTINGS, user=programs.user
        )
        pooler = self.add("the pooler", pooled, binaries)
        pooler.start()
        self.nodes = [server, pooler]
        pooler_version = debian.run(*command, "--version").splitlines()[0]
        self.title = f"PostgreSQL {self.create_database(server)} behind {pooler_version}"

    def role(self, node: Node) -> str:
        return node.name

    @property
    def urls(self) -> Sequence[URL]:
        url = self.nodes[1].url.set(database=DATABASE)
        return [url, url.set(drivername="postgresql+psycopg")]

    @property
    def ways_of_owners(self) -> Sequence[URL]:
        return []
