"""The players of chaos on a real cluster: ``python -m tests.clusters galera --seconds 60``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.chaos.command import main, parser_of
from tests.chaos.verdict import Verdict, judge
from tests.clusters import CLUSTERS
from tests.clusters.cluster import running
from tests.clusters.storm import ClusterStorm


def run(given: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Verdict:
    """Ask the nodes of owners, play, and judge both."""
    with running(CLUSTERS[given.name]) as cluster:
        tell(f"{cluster.title}, {given.seconds:g} s, seed {given.seed}")
        storm = ClusterStorm(cluster, folder, given)
        known = storm.known_liveness()
        storm.run()
        verdict = judge(storm)
    counts = {f"times: {answer}": count for answer, count in known.items()}
    faults = [answer.fault for answer in known if answer.fault is not None]
    return replace(verdict, counts=verdict.counts | counts, faults=faults + verdict.faults)


if __name__ == "__main__":
    parser = parser_of("clusters", __doc__)
    parser.add_argument("name", choices=CLUSTERS)
    sys.exit(main(parser.parse_args(), run))
