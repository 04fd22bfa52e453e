"""A primary and a synchronous standby of PostgreSQL; who loses its primary promotes the standby.

Clients know both, and ask libpq (or asyncpg) for the one that takes writes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from sqlalchemy import URL

from tests.chaos.fault import Fault
from tests.clusters.cluster import Cluster, KillNode
from tests.clusters.node import Node, free_ports
from tests.clusters.postgresql import (
    DATABASE,
    IN_RECOVERY,
    IN_STEP,
    DurableBinaries,
    ask,
    durable_programs,
    kill_postgres,
    says,
    tell,
    wait_while_running,
)
from tests.servers._keeper import as_user
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, make_folder

#: Seconds in which a server answers, copies the other, or catches up with it.
WITHIN = 60

ANY_STANDBY = "ALTER SYSTEM SET synchronous_standby_names = '*'"
NO_STANDBY = "ALTER SYSTEM SET synchronous_standby_names = ''"
RELOAD = "SELECT pg_reload_conf()"


class Standby(Cluster):
    """Two nodes, one of which is the primary."""

    name = "standby"
    fails_over = True

    def __init__(self) -> None:
        self.nodes = []

    def start(self) -> None:
        binaries = durable_programs()
        for number, port in enumerate(free_ports(2), start=1):
            folder = make_folder(self.name, user=binaries.user)
            self.nodes.append(Node(f"node {number}", folder, port, binaries))
        self.primary, standby = self.nodes
        self.primary.initialize()
        self._serve(self.primary)
        version = ask(self.primary.port, "SHOW server_version")
        self.title = f"PostgreSQL {version}, a synchronous standby that is promoted"
        tell(self.primary.port, f"CREATE DATABASE {DATABASE}")
        self._follow(standby)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def role(self, node: Node) -> str:
        return "the primary" if node is self.primary else "the standby"

    def kill(self, node: Node) -> None:
        """Kill a node; the standby of a primary takes its place."""
        kill_postgres(node.folder / "data")
        assert node.keeper is not None
        node.keeper.end()
        node.keeper = None
        if node is self.primary:
            self._promote(next(other for other in self.nodes if other is not node))

    def revive(self, node: Node) -> None:
        """Start a standby again; what was the primary follows the new one from its copy."""
        if (node.folder / "data" / "standby.signal").exists():
            self._serve(node)
            self._wait_until_in_step(node)
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

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self),)

    def _serve(self, node: Node) -> None:
        node.start()
        wait_while_running(node, lambda: says(node.port, "SELECT 1", "1"), WITHIN)

    def _follow(self, node: Node) -> None:
        """Copy the primary, and follow it; from then on each COMMIT waits for this node."""
        self._copy(node)
        self._serve(node)
        tell(self.primary.port, ANY_STANDBY, RELOAD)
        self._wait_until_in_step(node)

    def _copy(self, node: Node) -> None:
        assert isinstance(node.binaries, DurableBinaries)
        with (node.folder / "log").open("ab") as log:
            done = subprocess.run(
                (
                    *(str(node.binaries.folder / "pg_basebackup"), "-R", "-c", "fast"),
                    *("-h", LOCALHOST, "-p", str(self.primary.port), "-U", "postgres"),
                    *("-D", str(node.folder / "data")),
                ),
                stdout=log,
                stderr=log,
                cwd=node.folder,
                timeout=WITHIN,
                check=False,
                **as_user(node.binaries.user or ""),
            )
        if done.returncode != 0:
            raise NotHere(f"{node.name} could not copy the primary: {node.folder / 'log'}")

    def _wait_until_in_step(self, node: Node) -> None:
        wait_while_running(node, lambda: says(self.primary.port, IN_STEP, "1"), WITHIN)

    def _promote(self, node: Node) -> None:
        tell(node.port, f"SELECT pg_promote(true, {WITHIN})", NO_STANDBY, RELOAD)
        wait_while_running(node, lambda: says(node.port, IN_RECOVERY, "False"), WITHIN)
        self.primary = node
