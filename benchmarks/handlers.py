"""Handlers that take time: which share of a worker's slots is busy while jobs wait.

One worker process with ten slots; its handlers sleep, all for 20 milliseconds, or one in fifty for
two seconds. The slots' time counts from the beginning of the first handler to that of the last.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import click

from benchmarks.adapters.catalogue import BASELINE, Entry, entries
from benchmarks.adapters.naps import FOLDER, KIND
from benchmarks.drain import drain
from benchmarks.harness.command import ROUNDS, benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, Row, table
from benchmarks.harness.rounds import in_turn

if __name__ == "__main__":
    run_by_name(__spec__.name)

KINDS = ("even", "mixed")
SLOTS = 10
ADAPTERS = ("Worker", "AsyncWorker", "pgqueuer", "procrastinate")


def tables(figures: Figures) -> str:
    """Write a row for each adapter and kind of handlers."""
    columns = [
        ("", "{adapter}"),
        ("handlers", "{kind}"),
        ("slots busy", "{busy:.1%}"),
        ("jobs/s", "{rate:,.0f}"),
    ]
    return table(columns, figures["results"])


@benchmark(
    number("--jobs", 1000),
    ROUNDS,
    click.option("--peers/--no-peers", default=True, show_default=True),
    tables=tables,
)
def main(database: Database, *, jobs: int, rounds: int, peers: bool) -> Figures:
    """Let handlers sleep, and measure the share of slots that are busy while jobs wait."""
    chosen = [
        entry for entry in entries(database.name, ADAPTERS, peers=peers) if entry.name != BASELINE
    ]
    results = []
    for kind in KINDS:
        runs = in_turn(
            {entry.name: partial(run, entry, database, kind, jobs) for entry in chosen}, rounds
        )
        results += [_row(kind, of_adapter) for of_adapter in runs.values()]
    return {"results": results}


def run(entry: Entry, database: Database, kind: str, jobs: int) -> Row:
    """Drain a queue with handlers that sleep; return what was measured."""
    with tempfile.TemporaryDirectory() as folder, _environment({KIND: kind, FOLDER: folder}):
        drained = drain(entry, database, batch=SLOTS, workers=1, jobs=jobs)
        naps = [nap for path in Path(folder).iterdir() for nap in json.loads(path.read_text())]
    busy = share_busy(naps, SLOTS)
    click.echo(f"{entry.name:>16} {kind}: {busy:.1%}")
    return {**drained, "busy": busy}


def share_busy(naps: list[tuple[float, float]], slots: int) -> float:
    """Return the share of the slots' time that was busy until the last job began."""
    first, last = min(began for began, _ in naps), max(began for began, _ in naps)
    slept = sum(min(ended, last) - began for began, ended in naps)
    return slept / (slots * (last - first))


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """Add variables to the environment of processes that are started meanwhile."""
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _row(kind: str, runs: list[Row]) -> Row:
    """Sum up an adapter's runs of all rounds."""
    return {
        "adapter": runs[0]["adapter"],
        "kind": kind,
        "busy": round(median(run["busy"] for run in runs), 4),
        "rate": round(median(run["jobs"] / run["seconds"] for run in runs), 1),
        "runs": runs,
    }
