"""What a run asks of a cluster: its URLs, its faults, and that it ends with the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import URL

from tests.chaos.fault import Fault, Outage
from tests.servers.keeping import Binaries, make_folder
from tests.servers.node import Node
from tests.servers.provider import NetworkProvider

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Where the players' tables are.
DATABASE = "clusters"


class Cluster(ABC):
    """Nodes in temporary folders, of which one at a time is killed.

    Attributes:
        name: as on the command line.
        provider: of the database that the nodes serve.
        down: between how many seconds a killed node stays down; it takes some more to join.
        fails_over: before the run an owner's primary is killed, and its successor asked.
        title: what runs, with versions; known once it runs.
        nodes: those that may be killed.
    """

    name: ClassVar[str]
    provider: ClassVar[NetworkProvider]
    down: ClassVar[tuple[float, float]] = (0.5, 10.0)
    fails_over: ClassVar[bool] = False
    title: str

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.nodes: list[Node] = []
        self.in_trouble = False

    @abstractmethod
    def start(self) -> None:
        """Start all nodes, and create an empty database."""

    def role(self, node: Node) -> str:
        """Say in the report what a node is, where they are not all the same."""
        return "a node"

    def kill(self, node: Node) -> None:
        """Kill a node, which may come back later."""
        node.kill()

    def revive(self, node: Node) -> None:
        """Start a node that was killed, and wait until it takes part again."""
        node.start()

    @property
    def urls(self) -> Sequence[URL]:
        """The ways into the database, of synchronous drivers; players take them in turn."""
        return [node.url.set(database=DATABASE) for node in self.nodes]

    @property
    def ways_of_owners(self) -> Sequence[URL]:
        """The ways on which each is asked of owners; none where there can be no Owner."""
        return self.urls

    @property
    def faults(self) -> Sequence[Fault]:
        """What is done to the nodes, besides what is done to the players."""
        return (KillNode(self),)

    def fail_over(self) -> Node:
        """Kill the primary, wait for another, and return the killed node.

        Raises:
            NotImplementedError: the cluster is not asked of that; see fails_over.
        """
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027 - for most clusters there is nothing to wait for
        """Wait until the first URL shows all that was committed through any."""

    def add(self, name: str, port: int, binaries: Binaries) -> Node:
        """Make a folder for a node, which is stopped and removed when the run ends."""
        folder = make_folder(self.name, user=binaries.user)
        node = Node(name, folder, self.provider.url_at(port), binaries)
        self.stack.callback(node.stop)
        return node

    def create_database(self, node: Node) -> str:
        """Create the players' database through a node, and return its server's version."""
        server = self.provider.found(node.url, origin="started")
        server.create_database(DATABASE)
        return server.version


@contextmanager
def running(kind: type[Cluster]) -> Iterator[Cluster]:
    """Start a cluster; stop what was started, also where that has failed half-way."""
    with ExitStack() as stack:
        cluster = kind(stack)
        cluster.start()
        yield cluster


class KillNode(Outage):
    """Kill a node, one at a time, bring it back, and leave all alone for as long."""

    name = "node"
    cards = 2
    rest = 0

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.down = cluster.down

    def begin(self, storm: Storm) -> str:
        self._node = storm.dice.choice(self.place.nodes)
        role = self.place.role(self._node)
        self.place.kill(self._node)
        return f"SIGKILL, {role}"

    def end(self, storm: Storm) -> None:
        self.place.revive(self._node)
