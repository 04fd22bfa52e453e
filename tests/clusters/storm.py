"""A run of tests.chaos on a cluster: the players are spread over its URLs, and nodes fail."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path

from sqlalchemy import URL, NullPool, inspect

from tests.chaos.fault import Kill, Stop
from tests.chaos.jobs import ChaosBase
from tests.chaos.storm import Storm
from tests.clusters.cluster import Cluster
from tests.clusters.liveness import Known, known_after_failover, known_liveness
from tests.support import make_engine, until


class ClusterStorm(Storm):
    """A run of some seconds on a cluster: players are killed and stopped, and nodes fail."""

    def __init__(self, cluster: Cluster, folder: Path, given: Namespace) -> None:
        super().__init__(cluster.urls[0], folder, given, (Kill(), Stop(), *cluster.faults))
        self._cluster = cluster
        # They are ended by their numbers, and a number is one node's.
        self.loses_connections = False

    def known_liveness(self) -> Counter[Known]:
        """Ask the nodes of owners, before the run."""
        self.create_tables()
        known = known_liveness(self._cluster.ways_of_owners)
        return known + known_after_failover(self._cluster) if self._cluster.fails_over else known

    def create_tables(self) -> None:
        """Create the tables through one node, and wait until all have them."""
        super().create_tables()
        for url in self._cluster.urls:
            until(partial(_has_tables, url))

    def _way_in(self, *, far: bool) -> tuple[URL, str | None]:
        return self._cluster.urls[len(self.players) % len(self._cluster.urls)], None

    def _drain(self) -> None:
        self._cluster.settle()
        super()._drain()


def _has_tables(url: URL) -> bool:
    """Tell whether the tables that are created last are there."""
    engine = make_engine(url, poolclass=NullPool)
    return ChaosBase.metadata.tables.keys() <= set(inspect(engine).get_table_names())
