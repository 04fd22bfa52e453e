"""What an old snapshot costs: the rate in each tenth of a long drain, by one process.

While a report, a backup or an idle session keeps a snapshot, handled rows stay in the claim index.
"""

from __future__ import annotations

import click

from benchmarks.growth import courses
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, titled

if __name__ == "__main__":
    run_by_name(__spec__.name)


def tables(figures: Figures) -> str:
    """Write the table of rates."""
    return titled(("Jobs per second in each tenth of a drain", courses.COLUMNS, figures["courses"]))


@benchmark(
    number("--jobs", 1_000_000),
    number("--batch", 100),
    number("--rounds", 1),
    click.option("--peers/--no-peers", default=True, help="Install PgQueuer, and measure it."),
    tables=tables,
)
def main(database: Database, *, jobs: int, batch: int, rounds: int, peers: bool) -> Figures:
    """Drain a long queue with and without an old snapshot; compare with hand-written SQL."""
    ways = courses.ways(database.name, peers=peers)
    return {
        "courses": courses.measure_courses(
            database, ways, batch=batch, workers=1, jobs=jobs, rounds=rounds
        )
    }
