"""What both kinds of InnoDB clusters have in common: how a node is reached and asked."""

from __future__ import annotations

from sqlalchemy import URL

from tests.clusters.node import Node
from tests.servers import provider
from tests.servers.given import DRIVERS
from tests.servers.keeping import LOCALHOST
from tests.servers.server import connected

#: Where the players' tables are.
DATABASE = "clusters"


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
