"""Two nodes of PostgreSQL under Patroni, with etcd, behind HAProxy: who is the primary is theirs.

A node that is killed takes its Patroni along. Its lock in etcd ends after TTL seconds, then the
other node is promoted; a node that comes back earlier stays what it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from tests.clusters.cluster import DATABASE, Cluster
from tests.clusters.standby import IN_RECOVERY, IN_STEP
from tests.servers import debian
from tests.servers.keeping import LOCALHOST, Binaries, free_ports
from tests.servers.node import WITHIN, Node, kill_all
from tests.servers.postgresql import PostgreSQL
from tests.support import until

PACKAGES = ("patroni", "etcd-server", "haproxy")

#: Seconds that a primary's lock outlives it; Patroni takes no less.
TTL = 20

PARAMETERS = {
    "max_connections": 120,
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_log_hints": "on",
    "fsync": "on",
    "synchronous_commit": "on",
}

HAPROXY = """\
global
  maxconn 500
defaults
  mode tcp
  timeout connect 2s
  timeout client 10m
  timeout server 10m
listen primary
  bind {address}
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""


@dataclass(frozen=True, kw_only=True)
class Command(Binaries):
    """Serve by one command."""

    command: tuple[str, ...]

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return self.command


class Patroni(Cluster):
    """Two nodes, etcd and HAProxy."""

    name = "patroni"
    provider = PostgreSQL()
    fails_over = True
    #: Mostly longer than TTL, so that the other node is promoted.
    down = (5.0, 45.0)

    def start(self) -> None:
        found = self.provider.programs()
        self._programs, self._user = found.folder, found.user
        self._etcd, peers, port, *ports = free_ports(7)
        self._start_etcd(peers)
        rest_of = dict(zip(ports[:2], ports[2:], strict=True))
        for number, (served, rest) in enumerate(rest_of.items(), start=1):
            self._add_node(f"node{number}", served, rest)
        for node in self.nodes:
            self.stack.callback(self.kill, node)
            node.start()
        self._way_in = self._start_haproxy(port, rest_of)
        until(lambda: self._way_in.says(IN_STEP, "1"), WITHIN)
        version = self.create_database(self._way_in)
        self.title = f"PostgreSQL {version}, two nodes, Patroni, etcd, HAProxy"

    def role(self, node: Node) -> str:
        return "the standby" if node.says(IN_RECOVERY, "True") else "a primary"

    def kill(self, node: Node) -> None:
        """Kill a node's Patroni first, which would start the server again; then the server."""
        node.kill()
        kill_all(node.folder / "data" / "postmaster.pid")

    def revive(self, node: Node) -> None:
        node.start()
        until(lambda: self._way_in.says(IN_STEP, "1"), WITHIN)

    def fail_over(self) -> Node:
        killed, other = sorted(self.nodes, key=lambda node: node.says(IN_RECOVERY, "True"))
        self.kill(killed)
        until(lambda: other.says(IN_RECOVERY, "False"), WITHIN)
        until(self._way_in.answers, WITHIN)
        return killed

    @property
    def urls(self) -> Sequence[URL]:
        return [self._way_in.url.set(database=DATABASE, drivername="postgresql+psycopg")]

    # -- its parts ------------------------------------------------------

    def _serves(self, name: str, port: int, *command: str) -> Node:
        """Make a service that runs a command in its folder."""
        return self.add(name, port, Command(command=command, user=self._user))

    def _start_etcd(self, port: int) -> None:
        clients, peers = (f"http://{LOCALHOST}:{number}" for number in (self._etcd, port))
        etcd = self._serves(
            "etcd",
            self._etcd,
            *(debian.find("etcd", *PACKAGES), "--data-dir", "data", "--unsafe-no-fsync"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )
        etcd.start(lambda: True)

    def _start_haproxy(self, port: int, rest_of: dict[int, int]) -> Node:
        program = debian.find("haproxy", *PACKAGES)
        haproxy = self._serves("haproxy", port, program, "-f", "haproxy.cfg", "-db")
        servers = "".join(
            f"  server n{served} {LOCALHOST}:{served} check port {rest}\n"
            for served, rest in rest_of.items()
        )
        written = HAPROXY.format(address=f"{LOCALHOST}:{port}") + servers
        (haproxy.folder / "haproxy.cfg").write_text(written)
        haproxy.start()
        return haproxy

    def _add_node(self, name: str, port: int, rest: int) -> None:
        # exec: so the file holds the number of Patroni itself.
        patroni = f"echo $$ > pid; exec {debian.find('patroni', *PACKAGES)} patroni.json"
        node = self._serves(
            name, port, "env", "HOME=.", f"no_proxy={LOCALHOST}", "sh", "-c", patroni
        )
        written = json.dumps(self._settings(name, port, rest, node.folder))
        (node.folder / "patroni.json").write_text(written)
        self.nodes.append(node)

    def _settings(self, name: str, port: int, rest_port: int, folder: Path) -> dict[str, Any]:
        rest = f"{LOCALHOST}:{rest_port}"
        superuser = {"username": "postgres"}
        return {
            "scope": "clusters",
            "name": name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"{LOCALHOST}:{self._etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": 3,
                    "retry_timeout": 5,
                    "primary_start_timeout": 0,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": PARAMETERS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
                "pg_hba": [
                    f"host all all {LOCALHOST}/32 trust",
                    f"host replication all {LOCALHOST}/32 trust",
                ],
            },
            "postgresql": {
                "listen": f"{LOCALHOST}:{port}",
                "connect_address": f"{LOCALHOST}:{port}",
                "data_dir": str(folder / "data"),
                "bin_dir": str(self._programs),
                "pgpass": str(folder / "pgpass"),
                "parameters": {"unix_socket_directories": ""},
                "authentication": dict.fromkeys(("superuser", "replication", "rewind"), superuser),
            },
        }
