"""What both kinds of InnoDB clusters have in common: how a node is reached and asked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import URL

from tests.chaos.fault import Fault
from tests.clusters.cluster import Cluster, KillNode
from tests.clusters.node import Node
from tests.servers import provider
from tests.servers.given import DRIVERS
from tests.servers.keeping import LOCALHOST
from tests.servers.server import connected

#: Where the players' tables are.
DATABASE = "clusters"


class InnoDBCluster(Cluster):
    """Nodes of which one at a time is killed."""

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self, node: Node) -> None:
        node.kill()

    @property
    def faults(self) -> Sequence[Fault]:
        return (KillNode(self),)


def url_of(port: int, database: str, dialect: str = "mysql") -> URL:
    """Return the way to a database."""
    return URL.create(
        DRIVERS[dialect], username="root", host=LOCALHOST, port=port, database=database
    )


def ask(node: Node, query: str) -> str:
    """Return the only value of an answer; NotHere if the node gives none."""
    return provider.ask(url_of(node.port, "information_schema"), query)


def tell(node: Node, *statements: str) -> None:
    """Execute statements in one connection, outside of transactions."""
    with connected(url_of(node.port, "information_schema")) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
