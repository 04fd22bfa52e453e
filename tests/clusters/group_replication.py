"""Three members of MySQL Group Replication: with a single primary, and with three primaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from tests.chaos.fault import NOTHING, Fault
from tests.clusters.cluster import KillNode
from tests.clusters.innodb import DATABASE, InnoDBCluster, ask, tell, url_of
from tests.clusters.node import Node, free_ports
from tests.clusters.router import Router
from tests.servers.errors import NotHere
from tests.servers.innodb import as_root
from tests.servers.keeping import LOCALHOST, Binaries, make_folder
from tests.servers.mysql import MySQL, MySQLBinaries
from tests.servers.provider import binaries_of
from tests.support import until

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: In a member's folder: it has been in the group.
JOINED = "joined"

GROUP = "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"

#: Seconds in which a member is expelled, or joins.
WITHIN = 120

RECOVERY = (
    "SET SESSION sql_log_bin = 0",
    "CREATE USER recovery@'%%' IDENTIFIED BY 'recovery'",
    "GRANT REPLICATION SLAVE, BACKUP_ADMIN, GROUP_REPLICATION_STREAM, CONNECTION_ADMIN "
    "ON *.* TO recovery@'%%'",
    "SET SESSION sql_log_bin = 1",
    "RESET BINARY LOGS AND GTIDS",
    "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'recovery', SOURCE_PASSWORD = 'recovery' "
    "FOR CHANNEL 'group_replication_recovery'",
)

MEMBERS = "performance_schema.replication_group_members"
OWN_STATE = f"SELECT member_state FROM {MEMBERS} WHERE member_id = @@server_uuid"
PRIMARY = (
    f"SELECT member_port FROM {MEMBERS} WHERE member_role = 'PRIMARY' AND member_state = 'ONLINE'"
)


@dataclass(frozen=True, kw_only=True)
class MemberBinaries(Binaries):
    """Serve a member.

    Attributes:
        number: of the server, from 1.
        own: the port of this member's group communication.
        group: those of all members.
        options: the mode of the group.
    """

    programs: MySQLBinaries
    number: int
    own: int
    group: Sequence[int]
    options: Sequence[str]

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return self.programs.initialize(folder)

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        member = "ON" if (folder / JOINED).exists() else "OFF"
        return (
            *(*self.programs.command, "--no-defaults", *self.programs.layout, "--mysqlx=OFF"),
            *(*as_root(), *self._server(folder, port), *self._group(), *self.options),
            # Before it is in the group again, nobody may write to a member that comes back.
            *(f"--group-replication-start-on-boot={member}", f"--super-read-only={member}"),
        )

    def _server(self, folder: Path, port: int) -> Iterator[str]:
        yield f"--bind-address={LOCALHOST}"
        yield f"--datadir={folder / 'data'}"
        yield f"--port={port}"
        yield f"--socket={folder / 'socket'}"
        yield f"--pid-file={folder / 'pid'}"
        yield "--innodb-buffer-pool-size=128M"
        # What a killed process had committed is in the system's cache, which outlives it.
        yield "--innodb-flush-log-at-trx-commit=2"
        yield "--sync-binlog=0"

    def _group(self) -> Iterator[str]:
        yield f"--server-id={self.number}"
        yield "--gtid-mode=ON"
        yield "--enforce-gtid-consistency=ON"
        yield f"--report-host={LOCALHOST}"
        yield "--plugin-load-add=group_replication.so"
        yield f"--group-replication-group-name={GROUP}"
        yield f"--group-replication-local-address={LOCALHOST}:{self.own}"
        seeds = ",".join(f"{LOCALHOST}:{port}" for port in self.group)
        yield f"--group-replication-group-seeds={seeds}"
        yield "--group-replication-recovery-get-public-key=ON"
        yield "--group-replication-member-expel-timeout=0"


class _Group(InnoDBCluster):
    """Three members."""

    mode: ClassVar[str]
    options: ClassVar[Sequence[str]]

    def __init__(self) -> None:
        self.nodes = []

    def start(self) -> None:
        self._make_nodes()
        for node in self.nodes:
            node.initialize()
            node.start()
            until(partial(_answers, node), WITHIN)
            tell(node, *RECOVERY)
            self._join(node)
        version = ask(self.nodes[0], "SELECT VERSION()")
        self.title = f"Group Replication, MySQL {version}, three members, {self.mode}"
        tell(self.nodes[0], f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")

    def revive(self, node: Node) -> None:
        """Start a member once the others have expelled it: before, it would be refused."""
        listed = f"SELECT COUNT(*) FROM {MEMBERS} WHERE member_port = {node.port}"
        other = next(other for other in self.nodes if other.keeper)
        until(lambda: ask(other, listed) == "0", WITHIN)
        node.start()
        until(lambda: _is_online(node), WITHIN)

    def _make_nodes(self) -> None:
        programs = mysql_programs()
        ports = free_ports(6)
        for number in range(3):
            binaries = MemberBinaries(
                environment=programs.environment,
                stop_signal=programs.stop_signal,
                programs=programs,
                number=number + 1,
                own=ports[3 + number],
                group=ports[3:],
                options=self.options,
            )
            folder = make_folder("member")
            self.nodes.append(Node(f"member {number + 1}", folder, ports[number], binaries))

    def _join(self, node: Node) -> None:
        """Let a member join; the first begins the group."""
        first = node is self.nodes[0]
        tell(
            node,
            f"SET GLOBAL group_replication_bootstrap_group = {first}",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = FALSE",
        )
        until(lambda: _is_online(node), WITHIN)
        (node.folder / JOINED).touch()


class SinglePrimary(_Group):
    """One member takes writes; clients find it through a router."""

    name = "group-replication"
    mode = "single primary behind a router"
    options = ()

    def start(self) -> None:
        super().start()
        self._router = Router(self._primary)

    def stop(self) -> None:
        if hasattr(self, "_router"):
            self._router.close()
        super().stop()

    @property
    def urls(self) -> Sequence[URL]:
        return [url_of(self._router.port, DATABASE)]

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self), SwitchPrimary(self))

    def role(self, node: Node) -> str:
        return "the primary" if node.port == self._primary() else "a secondary"

    def _primary(self) -> int | None:
        """Return the primary's port, as the first member says that knows one."""
        for node in self.nodes:
            with suppress(NotHere):
                return int(ask(node, PRIMARY))
        return None


class MultiPrimary(_Group):
    """All members take writes."""

    name = "group-replication-multi-primary"
    mode = "three primaries"
    options = (
        "--group-replication-single-primary-mode=OFF",
        "--group-replication-enforce-update-everywhere-checks=ON",
    )

    @property
    def urls(self) -> Sequence[URL]:
        return [url_of(node.port, DATABASE) for node in self.nodes]

    def settle(self) -> None:
        """Let the first member apply what the others have committed."""
        consistent = "SET SESSION group_replication_consistency = 'BEFORE'"
        tell(self.nodes[0], consistent, f"SELECT COUNT(*) FROM {DATABASE}.task")


class SwitchPrimary(Fault):
    """Make another member the primary; connections to the old one stay, and are read-only."""

    name = "switch"

    def __init__(self, cluster: _Group) -> None:
        self._cluster = cluster

    def happen(self, storm: Storm) -> str:
        node = storm.dice.choice(self._cluster.nodes)
        try:
            uuid = ask(node, "SELECT @@server_uuid")
            tell(node, f"SELECT group_replication_set_as_primary('{uuid}')")
        except (NotHere, DBAPIError):  # it is down, or a member fails in this moment
            return NOTHING
        return "another primary appointed, or the same"


def mysql_programs() -> MySQLBinaries:
    """Find mysqld, or unpack it."""
    return binaries_of(MySQL())


def _answers(node: Node) -> bool:
    node.require_running()
    try:
        return bool(ask(node, "SELECT VERSION()"))
    except NotHere:
        return False


def _is_online(node: Node) -> bool:
    node.require_running()
    try:
        return ask(node, OWN_STATE) == "ONLINE"
    except NotHere:
        return False
