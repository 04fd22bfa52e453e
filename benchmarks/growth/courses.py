"""The rate over the course of a drain, with and without an old snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any

import click

from benchmarks.adapters import ours
from benchmarks.adapters.catalogue import CATALOGUE, Entry
from benchmarks.adapters.handwritten import innodb, postgresql, sqlite
from benchmarks.harness.databases import Database
from benchmarks.harness.processes import ask_all, crew
from benchmarks.harness.report import Column, Row
from benchmarks.harness.rounds import in_turn

PARTS = 10

COLUMNS: tuple[Column, ...] = (
    ("by", lambda row: row.get("way", "rows")),  # earlier runs had no other
    ("old snapshot", lambda row: "open" if row["snapshot"] else "none"),
    ("jobs", "{jobs:,}"),
    *((str(part + 1), f"{{rates[{part}]:,.0f}}") for part in range(PARTS)),
    ("kept", "{kept:.2f}"),
)


class Timing:
    """Remembers when it has finished each batch."""

    in_transaction: Any
    claim: Any
    finish: Any
    numbers: Any

    def drain(self) -> list[int]:
        run: list[int] = []
        self.finished: list[tuple[float, int]] = []
        while jobs := self.in_transaction(self.claim):
            self.in_transaction(self.finish, jobs)
            self.finished.append((time.monotonic(), len(jobs)))
            run += self.numbers(jobs)
        return run

    def batches(self) -> list[tuple[float, int]]:
        """Return when each batch was finished, and how many jobs it had."""
        return self.finished


class Rows(Timing, ours.Keep):
    """Rows of ours, kept as done."""


class OnPostgresql(Timing, postgresql.Keep):
    """Hand-written SQL."""


class OnInnodb(Timing, innodb.Keep):
    """Hand-written SQL."""


class OnSqlite(Timing, sqlite.Keep):
    """Hand-written SQL."""


def ways(database: str, *, peers: bool) -> list[Entry]:
    """Return what drains a database: ours, hand-written SQL, and PgQueuer where it can."""
    module = "innodb" if database in ("mysql", "mariadb") else database
    found = [
        Entry("rows", f"{__name__}:Rows", kind="ours"),
        Entry("sql", f"{__name__}:On{module.title()}"),
    ]
    peer = CATALOGUE["pgqueuer"]
    return [*found, peer] if peers and database in peer.databases else found


def measure_courses(
    database: Database,
    entries: Sequence[Entry],
    *,
    batch: int,
    workers: int,
    jobs: int,
    rounds: int,
) -> list[Row]:
    """Drain with and without an old snapshot in turn; return the median rate of each tenth.

    Raises:
        JobsLost: not every job was run once.
    """
    runs = {
        (entry.name, snapshot): partial(_rates, database, entry, snapshot, batch, workers, jobs)
        for entry in entries
        for snapshot in (False, True)
    }
    courses = []
    for (way, snapshot), by_round in in_turn(runs, rounds).items():
        rates = [round(median(tenth), 1) for tenth in zip(*by_round, strict=True)]
        size = {"batch": batch, "workers": workers, "jobs": jobs, "rounds": rounds}
        courses.append(
            {"way": way, "snapshot": snapshot, **size, "rates": rates, "kept": kept(rates)}
        )
        which = "an old snapshot" if snapshot else "no old snapshot"
        click.echo(f"drain by {way} with {which}: {kept(rates):.2f} of its rate is kept")
    return courses


def kept(rates: list[float]) -> float:
    """Divide the ninth tenth's rate by the second's: both ends of a drain are ragged."""
    return round(rates[-2] / rates[1], 3)


def _rates(
    database: Database, entry: Entry, snapshot: bool, batch: int, workers: int, jobs: int
) -> list[float]:
    with crew(entry, database, batch=batch, workers=workers, jobs=jobs) as working:
        working.fill()
        database.rest()
        with database.snapshot(snapshot):
            begun = min(answer.begun for answer in working.drain())
        batches = ask_all(working.workers, "batches")
        return rates_of(begun, (tuple(batch) for answer in batches for batch in answer.result))


def rates_of(begun: float, batches: Iterable[tuple[float, int]]) -> list[float]:
    """Cut a drain into tenths of its jobs; return the rate of each tenth.

    Args:
        batches: when each batch was finished, and how many jobs it had.
    """
    ordered = sorted(batches)
    total = sum(count for _, count in ordered)
    rates: list[float] = []
    run = run_before = 0
    for ended, count in ordered:
        run += count
        if run >= total * (len(rates) + 1) / PARTS:
            rates.append((run - run_before) / (ended - begun))
            begun, run_before = ended, run
    return rates
