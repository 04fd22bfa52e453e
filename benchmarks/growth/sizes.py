"""Claims and finishes timed in a table that grows, in turn with a small table beside it.

The ratio of the two tables holds also where the machine has slow minutes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from sqlalchemy.orm import Session

from benchmarks.adapters.model import make_engine
from benchmarks.growth.tables import Growing, both
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Column, Row
from benchmarks.harness.rounds import in_turn
from benchmarks.harness.timing import latency
from sa_jobqueue import JobQueue

KINDS = ("rows", "entities")
WARM_UP = 20

#: What is timed: the claim before its COMMIT, the claim and the finish with theirs. COMMIT waits
#: for a disk that is the same for every size.
STEPS = ("statement", "claim", "finish")

RATIOS = (
    "Each ratio is to the median of a small table, which stays at the first size and is measured "
    "in turn with the large table."
)
COLUMNS: tuple[Column, ...] = (
    ("done", "{done:,}"),
    ("backlog", "{backlog:,}"),
    ("old snapshot", lambda row: "open" if row["snapshot"] else "none"),
    ("", "{kind}"),
    ("claim p50 ms", "{claim[p50]:.2f}"),
    ("p99", "{claim[p99]:.2f}"),
    ("ratio", "{claim_ratio:.2f}"),
    ("before COMMIT p50", "{statement[p50]:.2f}"),
    ("ratio", "{statement_ratio:.2f}"),
    ("finish p50 ms", "{finish[p50]:.2f}"),
    ("p99", "{finish[p99]:.2f}"),
    ("ratio", "{finish_ratio:.2f}"),
)


@dataclass(frozen=True)
class Size:
    """How large the table is while it is measured.

    Attributes:
        done: rows that are done.
        backlog: rows that are unclaimed.
    """

    done: int
    backlog: int


class Claimer:
    """Claims and finishes batches of a table, as rows or as entities."""

    def __init__(self, table: Growing, kind: str, batch: int) -> None:
        self.table = table
        self.batch = batch
        self.session = Session(table.engine, expire_on_commit=False)
        queue: JobQueue[Any] = JobQueue(table.entity)
        self._complete = queue.complete
        self._claim: Callable[..., Any] = queue.claim_rows if kind == "rows" else queue.claim

    def turn(self) -> tuple[float, float, float]:
        """Claim and finish a batch; return the seconds of each of :data:`STEPS`.

        Afterwards the table is as large as it was.
        """
        begun = time.perf_counter()
        jobs = self._claim(self.session, owner="measured", limit=self.batch)
        returned = time.perf_counter()
        self.session.commit()
        claimed = time.perf_counter()
        self._complete(self.session, jobs)
        self.session.commit()
        finished = time.perf_counter()
        assert len(jobs) == self.batch, f"{len(jobs)} of {self.batch} jobs were claimed"
        self.table.put_back([job.id for job in jobs])
        return returned - begun, claimed - begun, finished - claimed


def measure_sizes(
    database: Database, sizes: Sequence[Size], *, batch: int, claims: int
) -> Iterator[Row]:
    """Grow a table from size to size, and time claims at each, without and with a snapshot.

    Args:
        sizes: from small to large; the small table stays at the first.
    """
    engine = make_engine(database.url)
    large, small = both(engine)
    small.grow(sizes[0].done, sizes[0].backlog)
    for size in sizes:
        large.grow(size.done, size.backlog)
        for snapshot in (False, True):
            database.rest()
            with database.snapshot(snapshot):
                times = _time(large, small, batch, claims)
            for kind in KINDS:
                context = {"snapshot": snapshot, "kind": kind, "batch": batch, "claims": claims}
                yield timed_row(size, context, times[large, kind], times[small, kind])
    engine.dispose()


def _time(
    large: Growing, small: Growing, batch: int, claims: int
) -> dict[tuple[Growing, str], list[tuple[float, ...]]]:
    """Claim from both tables, in each way, all in turn."""
    claimers = {
        (table, kind): Claimer(table, kind, batch) for kind in KINDS for table in (large, small)
    }
    turns = {key: claimer.turn for key, claimer in claimers.items()}
    in_turn(turns, min(WARM_UP, claims))
    gc.collect()
    times = in_turn(turns, claims)
    for claimer in claimers.values():
        claimer.session.close()
    return {key: list(seconds) for key, seconds in times.items()}


def timed_row(
    size: Size,
    context: Row,
    large: Sequence[Sequence[float]],
    small: Sequence[Sequence[float]],
) -> Row:
    """Sum up the turns of a way: the latencies in both tables, and the ratios of their medians."""
    row = {"done": size.done, "backlog": size.backlog, **context}
    for prefix, turns in (("", large), ("small_", small)):
        for step, seconds in zip(STEPS, zip(*turns, strict=True), strict=True):
            row[prefix + step] = latency(seconds)
    for step in STEPS:
        row[f"{step}_ratio"] = round(row[step]["p50"] / row[f"small_{step}"]["p50"], 3)
    line = (
        "{done:>9,} done, {backlog:>9,} unclaimed, {kind:>8}: claim {claim[p50]:.2f} ms = "
        "{claim_ratio:.2f}, before its COMMIT {statement[p50]:.2f} ms = {statement_ratio:.2f}"
    )
    click.echo(line.format_map(row) + (", with an old snapshot" if row["snapshot"] else ""))
    return row
