"""Three members of MySQL Group Replication: with a single primary, and with three primaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from tests.chaos.fault import NOTHING, Fault
from tests.clusters.cluster import DATABASE, Cluster, KillNode
from tests.proxy import Proxy
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, free_ports, initialize
from tests.servers.mysql import MySQL
from tests.servers.node import WITHIN, Node
from tests.support import until

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

GROUP = "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"

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


class _Group(Cluster):
    """Three members."""

    provider = MySQL()
    mode: ClassVar[str]
    options: ClassVar[Sequence[str]]

    def start(self) -> None:
        ports = free_ports(6)
        for number in range(3):
            options = (*options_of(number + 1, ports[3 + number], ports[3:]), *self.options)
            out = ("--group-replication-start-on-boot=OFF", "--super-read-only=OFF")
            programs = replace(self.provider.programs(), options=(*options, *out))
            node = self.add(f"member {number + 1}", ports[number], programs)
            self.nodes.append(node)
            initialize(programs, node.folder)
            node.start()
            self._join(node)
            # Before it is in the group again, nobody may write to a member that comes back.
            back = ("--group-replication-start-on-boot=ON", "--super-read-only=ON")
            node.binaries = replace(programs, options=(*options, *back))
        version = self.create_database(self.nodes[0])
        self.title = f"Group Replication, MySQL {version}, three members, {self.mode}"

    def revive(self, node: Node) -> None:
        """Start a member once the others have expelled it: before, it would be refused."""
        listed = f"SELECT COUNT(*) FROM {MEMBERS} WHERE member_port = {node.port}"
        other = next(other for other in self.nodes if other.keeper)
        until(lambda: other.ask(listed) == "0", WITHIN)
        node.start(lambda: node.says(OWN_STATE, "ONLINE"))

    def _join(self, node: Node) -> None:
        """Let a member join; the first begins the group."""
        first = node is self.nodes[0]
        node.tell(
            *RECOVERY,
            f"SET GLOBAL group_replication_bootstrap_group = {first}",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = FALSE",
        )
        until(lambda: node.says(OWN_STATE, "ONLINE"), WITHIN)


class SinglePrimary(_Group):
    """One member takes writes; clients find it through a router, as MySQL Router is one."""

    name = "group-replication"
    mode = "single primary behind a router"
    options = ()

    def start(self) -> None:
        super().start()
        url = self.nodes[0].url.set(database=DATABASE)
        self._router = self.stack.enter_context(Proxy(url, to=self._primary))

    @property
    def urls(self) -> Sequence[URL]:
        return [self._router.url]

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self), SwitchPrimary(self))

    def role(self, node: Node) -> str:
        return "the primary" if node.port == self._primary() else "a secondary"

    def _primary(self) -> int | None:
        """Return the primary's port, as the first member says that knows one."""
        for node in self.nodes:
            with suppress(NotHere):
                return int(node.ask(PRIMARY))
        return None


class MultiPrimary(_Group):
    """All members take writes."""

    name = "group-replication-multi-primary"
    mode = "three primaries"
    options = (
        "--group-replication-single-primary-mode=OFF",
        "--group-replication-enforce-update-everywhere-checks=ON",
    )

    def settle(self) -> None:
        """Let the first member apply what the others have committed."""
        consistent = "SET SESSION group_replication_consistency = 'BEFORE'"
        self.nodes[0].tell(consistent, f"SELECT COUNT(*) FROM {DATABASE}.task")


class SwitchPrimary(Fault):
    """Make another member the primary; connections to the old one stay, and are read-only."""

    name = "switch"

    def __init__(self, cluster: _Group) -> None:
        self._cluster = cluster

    def happen(self, storm: Storm) -> str:
        node = storm.dice.choice(self._cluster.nodes)
        try:
            uuid = node.ask("SELECT @@server_uuid")
            node.tell(f"SELECT group_replication_set_as_primary('{uuid}')")
        except (NotHere, DBAPIError):  # it is down, or a member fails in this moment
            return NOTHING
        return "another primary appointed, or the same"


def options_of(number: int, own: int, group: list[int]) -> Iterator[str]:
    """Give a member's options, by the port of its group communication and those of all."""
    # What a killed process had committed is in the system's cache, which outlives it.
    yield "--innodb-flush-log-at-trx-commit=2"
    yield "--innodb-doublewrite=ON"
    yield "--log-bin=binlog"
    yield f"--server-id={number}"
    yield "--gtid-mode=ON"
    yield "--enforce-gtid-consistency=ON"
    yield f"--report-host={LOCALHOST}"
    yield "--plugin-load-add=group_replication.so"
    yield f"--group-replication-group-name={GROUP}"
    yield f"--group-replication-local-address={LOCALHOST}:{own}"
    seeds = ",".join(f"{LOCALHOST}:{port}" for port in group)
    yield f"--group-replication-group-seeds={seeds}"
    yield "--group-replication-recovery-get-public-key=ON"
    yield "--group-replication-member-expel-timeout=0"
