"""A primary and a synchronous standby of PostgreSQL; who loses its primary promotes the standby.

Clients know both, and ask libpq (or asyncpg) for the one that takes writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import URL

from tests.clusters.cluster import DATABASE, Cluster
from tests.servers.keeping import LOCALHOST, free_ports, initialize, run_logged
from tests.servers.node import WITHIN, Node
from tests.servers.postgresql import PostgreSQL
from tests.support import until

#: How many standbys a COMMIT waits for.
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"

IN_RECOVERY = "SELECT pg_is_in_recovery()"
ANY_STANDBY = "ALTER SYSTEM SET synchronous_standby_names = '*'"
NO_STANDBY = "ALTER SYSTEM SET synchronous_standby_names = ''"
RELOAD = "SELECT pg_reload_conf()"


class Standby(Cluster):
    """Two nodes, one of which is the primary."""

    name = "standby"
    provider = PostgreSQL()
    fails_over = True

    def start(self) -> None:
        found = self.provider.programs()
        options = (*found.durable, "--wal_level=replica", "--max_wal_senders=8")
        self._programs = found.folder
        for number, port in enumerate(free_ports(2), start=1):
            self.nodes.append(self.add(f"node {number}", port, replace(found, options=options)))
        self.primary, standby = self.nodes
        initialize(self.primary.binaries, self.primary.folder)
        self.primary.start()
        version = self.create_database(self.primary)
        self.title = f"PostgreSQL {version}, a synchronous standby that is promoted"
        self._follow(standby)

    def role(self, node: Node) -> str:
        return "the primary" if node is self.primary else "the standby"

    def kill(self, node: Node) -> None:
        """Kill a node; the standby of a primary takes its place."""
        node.kill()
        if node is self.primary:
            self._promote(next(other for other in self.nodes if other is not node))

    def revive(self, node: Node) -> None:
        """Start a standby again; what was the primary follows the new one from its copy."""
        if (node.folder / "data" / "standby.signal").exists():
            node.start()
            until(lambda: self.primary.says(IN_STEP, "1"), WITHIN)
        else:
            shutil.rmtree(node.folder / "data")
            self._follow(node)

    def fail_over(self) -> Node:
        killed = self.primary
        self.kill(killed)
        return killed

    @property
    def urls(self) -> Sequence[URL]:
        hosts = tuple(f"{LOCALHOST}:{node.port}" for node in self.nodes)
        query = {"host": hosts, "target_session_attrs": "read-write"}
        return [
            URL.create(driver, username="postgres", database=DATABASE, query=query)
            for driver in ("postgresql+psycopg2", "postgresql+psycopg")
        ]

    def _follow(self, node: Node) -> None:
        """Copy the primary, and follow it; from then on each COMMIT waits for this node."""
        command = (str(self._programs / "pg_basebackup"), "-R", "-c", "fast")
        primary = ("-h", LOCALHOST, "-p", str(self.primary.port), "-U", "postgres")
        copied = (*command, *primary, "-D", str(node.folder / "data"))
        run_logged(node.binaries, node.folder, *copied, why=f"{node.name} has not its copy")
        node.start()
        self.primary.tell(ANY_STANDBY, RELOAD)
        until(lambda: self.primary.says(IN_STEP, "1"), WITHIN)

    def _promote(self, node: Node) -> None:
        node.tell(f"SELECT pg_promote(true, {WITHIN})", NO_STANDBY, RELOAD)
        until(lambda: node.says(IN_RECOVERY, "False"), WITHIN)
        self.primary = node
