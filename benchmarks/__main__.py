"""Drain queues side by side.

python -m benchmarks --engine postgresql --batch 1,10,100 --workers 4
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.adapters.catalogue import BASELINE, ENGINES, entries
from benchmarks.drain import Drain
from benchmarks.harness.databases import database
from benchmarks.harness.plots import plot_drains
from benchmarks.harness.report import as_markdown, say, write
from benchmarks.harness.rounds import Plan, measure
from tests.servers import ServerUnavailable

RESULTS = Path(__file__).resolve().parent / "results"


def batch_sizes(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Read numbers with commas between them."""
    try:
        sizes = tuple(map(int, value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers, such as 1,10,100") from error
    if min(sizes) < 1:
        raise click.BadParameter("a batch has at least one job")
    return sizes


@click.command()
@click.option("--engine", type=click.Choice(ENGINES), required=True)
@click.option("--url", help="Of a server; by default the one that the tests would use.")
@click.option("--batch", callback=batch_sizes, default="1,10,100", show_default=True)
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True)
@click.option("--adapter", multiple=True, help=f"Only these, and {BASELINE!r}; may be repeated.")
@click.option("--peers/--no-peers", default=True, show_default=True)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go."
)
def main(
    engine: str,
    url: str | None,
    batch: tuple[int, ...],
    workers: int,
    rounds: int,
    seconds: float,
    adapter: tuple[str, ...],
    peers: bool,
    results: Path,
) -> None:
    """Drain a queue with each adapter in turn, several rounds, every job checked."""
    try:
        chosen = entries(engine, adapter, peers=peers)
    except LookupError as error:
        raise click.UsageError(str(error)) from error
    try:
        with database(engine, url) as found:
            plan = Plan(engine, found, workers, batch, rounds, seconds)
            measured = list(measure(plan, chosen, _tell))
            path = write(results, plan, measured)
    except ServerUnavailable as error:
        raise click.ClickException(str(error)) from error
    say(as_markdown(measured))
    say(f"written: {path}, {plot_drains(path)}")


def _tell(drain: Drain) -> None:
    say(f"{drain.adapter:>16} batch {drain.batch:>3}: {drain.rate:>9,.0f} jobs/s")


if __name__ == "__main__":
    main()
