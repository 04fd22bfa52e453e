"""Two nodes of PostgreSQL under Patroni, with etcd, behind HAProxy: who is the primary is theirs.

A node that is killed takes its Patroni along. Its lock in etcd ends after TTL seconds, then the
other node is promoted; a node that comes back earlier stays what it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from tests.chaos.fault import Fault
from tests.clusters.cluster import Cluster, KillNode
from tests.clusters.node import Node, free_ports
from tests.clusters.postgresql import (
    DATABASE,
    IN_RECOVERY,
    IN_STEP,
    ask,
    kill_postgres,
    programs,
    says,
    tell,
    url_of,
    wait_while_running,
)
from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, Binaries, Keeper, make_folder
from tests.support import until

PACKAGES = ("patroni", "etcd-server", "haproxy")

#: Seconds that a primary's lock outlives it; Patroni takes no less.
TTL = 20

#: Seconds in which a cluster is made, or elects and repairs.
WITHIN = 120

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
    """Serve by one command; there is no data folder to make."""

    command: Sequence[str] = field(default=())

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return ("true",)

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return tuple(self.command)


class Patroni(Cluster):
    """Two nodes, etcd and HAProxy."""

    name = "patroni"
    fails_over = True
    #: Mostly longer than TTL, so that the other node is promoted.
    down = (5.0, 45.0)

    def __init__(self) -> None:
        self.nodes = []
        self._services: list[Keeper] = []
        self._folders: list[Path] = []

    def start(self) -> None:
        found = programs()
        self._programs, self._user = found.folder, found.user
        self._etcd, self._peers, self._port, *ports = free_ports(7)
        self._start_etcd()
        self._rest = dict(zip(ports[:2], ports[2:], strict=True))
        for number, port in enumerate(self._rest, start=1):
            self._add_node(f"node{number}", port)
        for node in self.nodes:
            node.start()
            wait_while_running(node, lambda port=node.port: says(port, "SELECT 1", "1"), WITHIN)  # type: ignore[misc]  # mypy takes a lambda with a default for one with an argument
        self._start_haproxy()
        self._wait_until_in_step()
        tell(self._port, f"CREATE DATABASE {DATABASE}")
        version = ask(self._port, "SHOW server_version")
        self.title = f"PostgreSQL {version}, two nodes, Patroni, etcd, HAProxy"

    def stop(self) -> None:
        for node in self.nodes:
            kill_patroni(node)
            node.stop()
        for service in self._services:
            service.end()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def role(self, node: Node) -> str:
        return "the standby" if says(node.port, IN_RECOVERY, "True") else "a primary"

    def kill(self, node: Node) -> None:
        kill_patroni(node)

    def revive(self, node: Node) -> None:
        node.start()
        self._wait_until_in_step()

    def fail_over(self) -> Node:
        killed, other = sorted(self.nodes, key=lambda node: says(node.port, IN_RECOVERY, "True"))
        self.kill(killed)
        until(lambda: says(other.port, IN_RECOVERY, "False"), WITHIN)
        until(lambda: says(self._port, "SELECT 1", "1"), WITHIN)
        return killed

    @property
    def urls(self) -> Sequence[URL]:
        return [url_of(self._port, DATABASE).set(drivername="postgresql+psycopg")]

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self),)

    # -- its parts ------------------------------------------------------

    def _folder(self, name: str) -> Path:
        folder = make_folder(name, user=self._user)
        self._folders.append(folder)
        return folder

    def _start_etcd(self) -> None:
        clients, peers = (f"http://{LOCALHOST}:{port}" for port in (self._etcd, self._peers))
        folder = self._folder("etcd")
        self._serve(
            folder,
            program("etcd"),
            *("--data-dir", str(folder / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )

    def _start_haproxy(self) -> None:
        folder = self._folder("haproxy")
        servers = "".join(
            f"  server n{port} {LOCALHOST}:{port} check port {rest}\n"
            for port, rest in self._rest.items()
        )
        written = HAPROXY.format(address=f"{LOCALHOST}:{self._port}") + servers
        (folder / "haproxy.cfg").write_text(written)
        self._serve(folder, program("haproxy"), "-f", str(folder / "haproxy.cfg"), "-db")

    def _serve(self, folder: Path, *command: str) -> None:
        binaries = Command(command=command, user=self._user)
        self._services.append(Keeper(binaries, folder, port=0))

    def _add_node(self, name: str, port: int) -> None:
        folder = self._folder(name)
        settings = folder / "patroni.json"
        settings.write_text(json.dumps(self._settings(name, port, folder)))
        binaries = Command(
            # exec: so the file holds the number of Patroni itself.
            command=("sh", "-c", f"echo $$ > pid; exec {program('patroni')} {settings}"),
            user=self._user,
            environment={"HOME": str(folder), "no_proxy": LOCALHOST},
        )
        self.nodes.append(Node(name, folder, port, binaries))

    def _settings(self, name: str, port: int, folder: Path) -> dict[str, Any]:
        rest = f"{LOCALHOST}:{self._rest[port]}"
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

    def _wait_until_in_step(self) -> None:
        """Wait until the primary's COMMITs wait for the other node."""
        until(lambda: says(self._port, IN_STEP, "1"), WITHIN)


def kill_patroni(node: Node) -> None:
    """Kill a node's Patroni first, which would start the server again; then the server."""
    if node.keeper is not None:
        node.kill()
    kill_postgres(node.folder / "data")


def program(name: str) -> str:
    """Find a program, or install all of them."""
    if debian.which(name) is None:
        debian.install(*PACKAGES)
    found = debian.which(name)
    if found is None:
        raise NotHere(f"{' '.join(PACKAGES)} did not bring {name}")
    return os.fspath(found)
