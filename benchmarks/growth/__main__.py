"""Measure claims on growing tables, under old snapshots, and among producers.

python -m benchmarks.growth --engine postgresql --done 1000,100000,1000000,5000000
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.__main__ import batch_sizes
from benchmarks.adapters.catalogue import ENGINES
from benchmarks.growth.measuring import GrowthPlan, measure
from benchmarks.harness.databases import database
from benchmarks.harness.plots import plot_growth
from benchmarks.harness.report import say
from benchmarks.harness.written import RESULTS, write_json
from tests.servers import ServerUnavailable

#: The sizes of the table, in rows already done.
DONE = "1000,100000,1000000,5000000"


@click.command()
@click.option("--engine", type=click.Choice(ENGINES), required=True)
@click.option("--url", help="Of a server; by default the one that the tests would use.")
@click.option("--done", callback=batch_sizes, default=DONE, show_default=True)
@click.option("--backlog", callback=batch_sizes, default="20000,200000,1000000", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--claims", type=click.IntRange(1), default=300, show_default=True)
@click.option("--drained", type=click.IntRange(0), default=50_000, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--produced", type=click.IntRange(0), default=10_000, show_default=True)
@click.option("--producers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--consumers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--crowd-batches", callback=batch_sizes, default="1,10,100", show_default=True)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go."
)
def main(engine: str, url: str | None, results: Path, **sizes: object) -> None:
    """Time claim and finish by rows done and by backlog; count the errors of a crowd."""
    try:
        with database(engine, url) as found:
            plan = _plan(engine=engine, url=found, **sizes)
            growth = measure(plan, say)
            path = write_json(results, "growth", engine, found, growth.as_dict())
    except ServerUnavailable as error:
        raise click.ClickException(str(error)) from error
    say(growth.as_markdown())
    say(f"written: {path}, {plot_growth(path)}")


def _plan(**sizes: object) -> GrowthPlan:
    try:
        return GrowthPlan(**sizes)  # type: ignore[arg-type]  # click has checked each option
    except ValueError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
