"""Queues drained side by side: jobs a second of each adapter, beside hand-written SQL.

Each drain fills a queue, lets workers empty it, and checks every job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from benchmarks.adapters.adapter import SYNCHRONOUS
from benchmarks.adapters.catalogue import BASELINE, Entry, entries
from benchmarks.harness.command import ROUNDS, benchmark, number, numbers, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.plots import COLOURS, GRID, server_of
from benchmarks.harness.processes import crew
from benchmarks.harness.report import Figures, Row, table
from benchmarks.harness.rounds import in_turn, median_ratio, ratios

if __name__ == "__main__":
    run_by_name(__spec__.name)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The first pilot has so many jobs.
PILOT_JOBS = 400

#: Pilots grow until one takes this part of the time that a drain should take. In a much shorter
#: pilot, the start of the workers would count for too much.
PILOT_SHARE = 0.5

FEWEST, MOST = 400, 200_000

#: The part of an adapter's room that its bars take; and inches for each bar.
SHARE = 0.8
INCHES = 0.17


#: The loop by hand that each worker is compared with.
LOOPS = {"Worker": "entities, turn", "AsyncWorker": "entities, turn, asyncio"}


def tables(figures: Figures) -> str:
    """Write a row for each adapter and a column for each batch size: rate = ratio."""
    return _table(figures["results"])


def table_of_workers(figures: Figures) -> str:
    """Write a row for each worker: rate = ratio to its loop in the same round; or nothing."""
    found = {(row["adapter"], row["batch"]): row for row in figures["results"]}
    return _table(
        [
            row | {"ratio": median_ratio(_rates(row), _rates(loop))}
            for (name, batch), row in found.items()
            if (loop := found.get((LOOPS.get(name, ""), batch))) is not None
        ]
    )


def _both_tables(figures: Figures) -> str:
    return "\n\n".join(filter(None, (tables(figures), table_of_workers(figures))))


def _table(results: Sequence[Row]) -> str:
    if not results:
        return ""
    cells = {(row["adapter"], row["batch"]): _cell(row) for row in results}
    batches = sorted({row["batch"] for row in results})
    columns = [("", "{adapter}"), *((f"batch {batch}", f"{{batch {batch}}}") for batch in batches)]
    rows = [
        {"adapter": name, **{f"batch {batch}": cells.get((name, batch), "-") for batch in batches}}
        for name in adapters_of(results)
    ]
    return table(columns, rows)


def _rates(row: Row) -> list[float]:
    return [_rate(drained) for drained in row["drains"]]


def _cell(row: Row) -> str:
    retried = f", {row['retries']} deadlocks" if row["retries"] else ""
    return f"{row['rate']:,.0f} = {row['ratio']:.2f}{retried}"


def adapters_of(results: Sequence[Row]) -> list[str]:
    """List the adapters in the order of the run."""
    return list(dict.fromkeys(row["adapter"] for row in results))


def draw(figure: Figure, written: dict[str, Any]) -> None:
    """Draw the ratios: a bar for each batch size, the baseline as a line."""
    results = written["results"]
    adapters = adapters_of(results)
    batches = sorted({row["batch"] for row in results})
    figure.set_size_inches(8, 1.3 + len(adapters) * (len(batches) + 0.6) * INCHES)
    axes = figure.subplots()
    for index, batch in enumerate(batches):
        of_batch = {row["adapter"]: row for row in results if row["batch"] == batch}
        _bars(axes, adapters, of_batch, index, len(batches))
    _name_adapters(axes, adapters)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(f"jobs per second by those of {adapters[0]!r} in the same round")
    title = f"{server_of(written)}, {written['conditions']['workers']} workers"
    axes.set_title(title, loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(batches))


def _bars(
    axes: Axes, adapters: Sequence[str], rows: dict[str, Row], index: int, count: int
) -> None:
    width = SHARE / count
    shown = [(y, rows[adapter]) for y, adapter in enumerate(adapters) if adapter in rows]
    bars = axes.barh(
        [y + width * (index - (count - 1) / 2) for y, _ in shown],
        [row["ratio"] for _, row in shown],
        height=width * 0.92,
        color=COLOURS[index % len(COLOURS)],
        label=f"batch {shown[0][1]['batch']}",
    )
    labels = [f"{row['ratio']:.2f}  ({row['rate']:,.0f}/s)" for _, row in shown]
    # A white box keeps the baseline's line from striking a label through.
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.bar_label(bars, labels, padding=3, fontsize=6.5, color="#444444", bbox=behind)


def _name_adapters(axes: Axes, adapters: Sequence[str]) -> None:
    axes.set_yticks(range(len(adapters)), adapters)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(adapters) - 0.4, -0.6)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
    axes.grid(axis="x", **GRID)


@benchmark(
    numbers("--batch", "1,10,100"),
    number("--workers", 4),
    ROUNDS,
    click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True),
    click.option("--adapter", multiple=True, help=f"Only these and {BASELINE!r}; may be repeated."),
    click.option("--peers/--no-peers", default=True, show_default=True),
    click.option(
        "--synchronous",
        type=click.Choice(["FULL", "NORMAL"]),
        default="FULL",
        show_default=True,
        help="How SQLite writes to the disk: at each commit, or at checkpoints only.",
    ),
    tables=_both_tables,
    draw=draw,
)
def main(
    database: Database,
    *,
    batch: tuple[int, ...],
    workers: int,
    rounds: int,
    seconds: float,
    adapter: tuple[str, ...],
    peers: bool,
    synchronous: str,
) -> Figures:
    """Drain a queue with each adapter in turn, several rounds, and check every job."""
    os.environ[SYNCHRONOUS] = synchronous  # for the processes of the adapters
    chosen = entries(database.name, adapter, peers=peers)
    return {
        "results": [
            row
            for size in batch
            for row in measure(
                database, chosen, batch=size, workers=workers, rounds=rounds, seconds=seconds
            )
        ]
    }


def measure(
    database: Database,
    chosen: Sequence[Entry],
    *,
    batch: int,
    workers: int,
    rounds: int,
    seconds: float,
) -> list[Row]:
    """Drain with all adapters at a batch size; return a row for each.

    Args:
        seconds: how long a drain should take.
    """
    drains = in_turn(
        {
            entry.name: _drain_for(seconds, database, entry, batch, workers)
            for entry in chosen
            if batch == 1 or not entry.one_at_a_time
        },
        rounds,
    )
    baseline = [_rate(drained) for drained in drains[BASELINE]]
    return [_row(of_adapter, baseline) for of_adapter in drains.values()]


def _drain_for(
    seconds: float, database: Database, entry: Entry, batch: int, workers: int
) -> partial[Row]:
    """Choose how many jobs keep an adapter busy for about as long as wanted, by pilots."""
    start = partial(drain, entry, database, batch=batch, workers=workers)
    jobs, took = max(PILOT_JOBS, batch * workers * 5), 0.0
    while took < seconds * PILOT_SHARE and jobs < MOST:
        pilot = start(jobs=jobs)
        took = pilot["seconds"]
        jobs = min(max(int(_rate(pilot) * seconds), FEWEST), MOST) // batch * batch
    return partial(start, jobs=jobs, tell=True)


def drain(
    entry: Entry, database: Database, *, batch: int, workers: int, jobs: int, tell: bool = False
) -> Row:
    """Drain a queue; return what was measured.

    The time is from the start signal until the last worker found nothing more. Retries are
    transactions that were run again after a deadlock.

    Raises:
        JobsLost: not every job was run exactly once.
        HostFailed: an adapter's process ended early.
    """
    with crew(entry, database, batch=batch, workers=workers, jobs=jobs) as working:
        filled = working.fill()
        database.settle()
        done = working.drain()
    drained = {
        "adapter": entry.name,
        "batch": batch,
        "workers": workers,
        "jobs": jobs,
        "seconds": max(answer.ended for answer in done) - min(answer.begun for answer in done),
        "fill_seconds": filled.seconds,
        "retries": sum(answer.retries for answer in done),
    }
    if tell:
        click.echo(f"{entry.name:>16} batch {batch:>3}: {_rate(drained):>9,.0f} jobs/s")
    return drained


def _rate(drained: Row) -> float:
    """Return jobs in a second."""
    return float(drained["jobs"] / drained["seconds"])


def _row(drains: Sequence[Row], baseline: Sequence[float]) -> Row:
    """Sum up an adapter's drains of all rounds, with the ratios to the baseline's rates."""
    rates = [_rate(drained) for drained in drains]
    by_round = ratios(rates, baseline)
    return {
        "adapter": drains[0]["adapter"],
        "batch": drains[0]["batch"],
        "rate": round(median(rates), 1),
        "ratio": round(median(by_round), 3),
        "ratios": [round(ratio, 3) for ratio in by_round],
        "fill_rate": round(median(row["jobs"] / row["fill_seconds"] for row in drains), 1),
        "retries": sum(row["retries"] for row in drains),
        "drains": list(drains),
    }
