"""The players of tests.chaos on a real cluster: ``python -m tests.clusters galera --seconds 60``.

The seed decides which faults are done in which order; when they hit is up to the machine. The
histories of a run with faults are kept, and their folder is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.chaos.pace import Pace
from tests.chaos.verdict import Verdict, judge
from tests.clusters import CLUSTERS
from tests.clusters.cluster import Cluster
from tests.clusters.storm import ClusterStorm
from tests.servers.errors import NotHere


def main() -> int:
    """Run, judge and print; return 1 if a fault was found."""
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="clusters-"))
    try:
        with CLUSTERS[given.name]() as cluster:
            title = f"{cluster.title}, {given.seconds:g} s, seed {given.seed}"
            print(title, flush=True)  # noqa: T201 - its purpose
            verdict = run(cluster, folder, given)
    except NotHere as error:
        sys.exit(str(error))
    report = "\n".join((title, *verdict.lines()))
    print(report.partition("\n")[2])  # noqa: T201 - its purpose
    if given.reports is not None:
        given.reports.mkdir(parents=True, exist_ok=True)
        (given.reports / f"{given.name}.txt").write_text(f"{report}\n", encoding="utf-8")
    if verdict.faults:
        print(f"The histories are in {folder}")  # noqa: T201 - its purpose
        return 1
    shutil.rmtree(folder)
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters", description=__doc__)
    parser.add_argument("name", choices=CLUSTERS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--reports", type=Path, help="a folder for NAME.txt, what is printed")
    Pace.add_options(parser)
    return parser.parse_args()


def run(cluster: Cluster, folder: Path, given: argparse.Namespace) -> Verdict:
    """Ask the nodes of owners, play, and judge both."""
    storm = ClusterStorm(cluster, folder, given.seconds, given.seed)
    storm.pace = Pace.given(given)
    known = storm.known_liveness()
    storm.run()
    verdict = judge(storm)
    counts = {f"times: {answer}": count for answer, count in known.items()}
    faults = [answer.fault for answer in known if answer.fault is not None]
    return replace(verdict, counts=verdict.counts | counts, faults=faults + verdict.faults)


if __name__ == "__main__":
    sys.exit(main())
