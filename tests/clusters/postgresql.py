"""What the clusters of PostgreSQL have in common: programs, questions, and whole deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.chaos.own_server import DURABLE, children_of
from tests.clusters.node import Node
from tests.servers import provider
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST
from tests.servers.postgresql import PostgreSQL, PostgreSQLBinaries
from tests.servers.provider import binaries_of
from tests.servers.server import connected
from tests.support import until

#: Where the players' tables are.
DATABASE = "clusters"

#: How many standbys a COMMIT waits for.
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"

IN_RECOVERY = "SELECT pg_is_in_recovery()"


@dataclass(frozen=True, kw_only=True)
class DurableBinaries(PostgreSQLBinaries):
    """Serve a node that another may copy, and whose COMMITs outlive it."""

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        served = super().serve(folder, port=port)
        return (*served, *DURABLE["postgresql"], "--wal_level=replica", "--max_wal_senders=8")


def durable_programs() -> DurableBinaries:
    """Find the programs, for a server whose COMMITs outlive it."""
    found = programs()
    return DurableBinaries(folder=found.folder, user=found.user)


def programs() -> PostgreSQLBinaries:
    """Find PostgreSQL's programs, or install them."""
    return binaries_of(PostgreSQL())


def url_of(port: int, database: str = "postgres") -> URL:
    """Return the way to a database of one server."""
    return URL.create(
        "postgresql+psycopg2", username="postgres", host=LOCALHOST, port=port, database=database
    )


def ask(port: int, query: str) -> str:
    """Return the only value of an answer; NotHere if the server gives none."""
    return provider.ask(url_of(port), query)


def tell(port: int, *statements: str) -> None:
    """Execute statements, each outside of transactions."""
    with connected(url_of(port)) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def says(port: int, query: str, answer: str) -> bool:
    """Tell whether a server answers, and with this."""
    try:
        return ask(port, query) == answer
    except NotHere:
        return False


def wait_while_running(node: Node, condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a node; NotHere, with the end of its log, if it ends meanwhile."""

    def so_far() -> bool:
        node.require_running()
        return condition()

    until(so_far, seconds)


def kill_postgres(data: Path) -> None:
    """Kill a server and all of its processes, and wait until they are gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        postmaster = int((data / "postmaster.pid").read_text().split()[0])
        numbers = (postmaster, *children_of(postmaster))
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        until(lambda: not any(map(_is_alive, numbers)))


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
