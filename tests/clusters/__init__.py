"""Real clusters, started here and stopped here; no part of the ordinary tests.

::

    python -m tests.clusters galera --seconds 60 --seed 15
"""

from __future__ import annotations

from tests.clusters.cluster import Cluster
from tests.clusters.galera import Galera
from tests.clusters.group_replication import MultiPrimary, SinglePrimary
from tests.clusters.patroni import Patroni
from tests.clusters.pooler import Pooler
from tests.clusters.standby import Standby

#: The clusters by their names on the command line.
CLUSTERS: dict[str, type[Cluster]] = {
    cluster.name: cluster
    for cluster in (Galera, SinglePrimary, MultiPrimary, Standby, Patroni, Pooler)
}
