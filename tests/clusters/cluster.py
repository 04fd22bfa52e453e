"""What a run asks of a cluster: its URLs, its faults, and that it ends with the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from sqlalchemy import URL

from tests.chaos.fault import NOTHING, Fault
from tests.clusters.node import Node

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds that a node is down; it takes some more to join.
DOWN = (0.5, 10.0)


class Cluster(ABC):
    """Nodes in temporary folders, from ``with`` until its end.

    Attributes:
        name: as on the command line.
        down: between how many seconds a killed node stays down; it takes some more to join.
        fails_over: before the run an owner's primary is killed, and its successor asked.
        title: what runs, with versions; known once it runs.
        nodes: those that may be killed.
    """

    name: ClassVar[str]
    down: ClassVar[tuple[float, float]] = DOWN
    fails_over: ClassVar[bool] = False
    title: str
    nodes: list[Node]

    @abstractmethod
    def start(self) -> None:
        """Start all nodes, and create an empty database."""

    @abstractmethod
    def stop(self) -> None:
        """Stop whatever was started, also where start() has failed half-way."""

    def role(self, node: Node) -> str:
        """Say in the report what a node is, where they are not all the same."""
        return "a node"

    @abstractmethod
    def kill(self, node: Node) -> None:
        """Kill a node, which may come back later."""

    @abstractmethod
    def revive(self, node: Node) -> None:
        """Start a node that was killed, and wait until it takes part again."""

    @property
    @abstractmethod
    def urls(self) -> Sequence[URL]:
        """The ways into the database, of synchronous drivers; players take them in turn."""

    @property
    def ways_of_owners(self) -> Sequence[URL]:
        """The ways on which each is asked of owners; none where there can be no Owner."""
        return self.urls

    @property
    @abstractmethod
    def faults(self) -> Sequence[Fault]:
        """What is done to the nodes, besides what is done to the players."""

    def fail_over(self) -> Node:
        """Kill the primary, wait for another, and return the killed node.

        Raises:
            NotImplementedError: the cluster is not asked of that; see fails_over.
        """
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027 - for most clusters there is nothing to wait for
        """Wait until the first URL shows all that was committed through any."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class KillNode(Fault):
    """Kill a node, one at a time, bring it back, and leave all alone for as long."""

    name = "node"
    cards = 2

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._busy = False

    def happen(self, storm: Storm) -> str:
        if self._busy:
            return NOTHING
        node = storm.dice.choice(self._cluster.nodes)
        role = self._cluster.role(node)
        self._cluster.kill(node)
        self._busy = True
        down = storm.dice.uniform(*self._cluster.down)
        storm.later(down, partial(self._revive, storm, node, down))
        return f"SIGKILL, {role}"

    def _revive(self, storm: Storm, node: Node, rest: float) -> None:
        self._cluster.revive(node)
        storm.later(rest, self._may_kill)

    def _may_kill(self) -> None:
        self._busy = False
