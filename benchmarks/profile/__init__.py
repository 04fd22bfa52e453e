"""Where the Python time of a claim and a finish goes: client CPU, in microseconds.

Waiting for the server and its disk does not count. First sa_jobqueue is measured beside the driver
alone, SQLAlchemy's Core and its ORM; then sa_jobqueue's time is divided into stages.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from statistics import mean, median
from typing import Any

import click

from benchmarks.adapters.catalogue import BASELINE, CATALOGUE
from benchmarks.adapters.model import make_engine
from benchmarks.adapters.shared_table import InTransactions
from benchmarks.harness.command import benchmark, number, numbers
from benchmarks.harness.databases import Database
from benchmarks.harness.host import load
from benchmarks.harness.report import Figures, Row, titled
from benchmarks.harness.rounds import in_turn
from benchmarks.profile.stages import OUR_CODE, STAGES, watched

#: Adapters that claim and finish in transactions of their own: the default, from the driver alone
#: to sa_jobqueue, and more that ``--adapter`` may name.
PROFILED = (BASELINE, "sql, core", "sql, orm", "rows", "rows, session", "entities")
MORE = ("sql, keep", "rows, keep")

STEPS = ("claim", "claim_commit", "finish", "finish_commit")
WARM_UP = 30


def tables(figures: Figures) -> str:
    """Write two tables: by step and by stage. What their sums differ by is the measuring's cost."""
    head = (("", "{adapter}"), ("batch", "{batch}"))
    every = (("all", "{all:,.0f}"), ("for each job", "{each:,.1f}"))
    steps = zip(("claim", "COMMIT", "finish", "COMMIT"), STEPS, strict=True)
    return titled(
        (
            "Microseconds of client CPU for one batch",
            (*head, *((title, f"{{{step}:,.0f}}") for title, step in steps), *every),
            figures["steps"],
        ),
        (
            "The same by stage",
            (*head, *((stage, f"{{{stage}:,.0f}}") for stage in STAGES), *every),
            figures["stages"],
        ),
    )


@benchmark(
    numbers("--batch", "1,10,100"),
    number("--calls", 1_000),
    number("--rounds", 5),
    click.option(
        "--adapter",
        multiple=True,
        type=click.Choice(PROFILED + MORE),
        default=PROFILED,
        show_default=True,
        help="May be repeated.",
    ),
    tables=tables,
)
def main(
    database: Database, *, batch: tuple[int, ...], calls: int, rounds: int, adapter: Sequence[str]
) -> Figures:
    """Profile claim and finish beside the driver, Core and the ORM, and by stage."""
    ours = [name for name in adapter if CATALOGUE[name].kind == "ours"]
    figures: Figures = {"steps": [], "stages": []}
    for size in batch:
        runs = {name: partial(measure_steps, name, database, size, calls) for name in adapter}
        for name, steps in in_turn(runs, rounds).items():
            medians = {step: median(of_round[step] for of_round in steps) for step in STEPS}
            figures["steps"].append(_row(name, size, medians))
        for name in ours:
            stages = measure_stages(name, database, size, calls)
            figures["stages"].append(_row(name, size, stages))
    return figures


def _row(adapter: str, batch: int, microseconds: dict[str, float]) -> Row:
    total = sum(microseconds.values())
    head = {"adapter": adapter, "batch": batch}
    return {**head, **microseconds, "all": total, "each": total / batch}


def measure_steps(name: str, database: Database, batch: int, calls: int) -> dict[str, float]:
    """Return the mean of each step, in microseconds."""
    with prepared(name, database, batch, calls) as adapter:
        columns = zip(*turns(adapter, calls), strict=True)
        return {step: mean(column) * 1e6 for step, column in zip(STEPS, columns, strict=True)}


def measure_stages(name: str, database: Database, batch: int, calls: int) -> dict[str, float]:
    """Return the mean of each stage, in microseconds."""
    with prepared(name, database, batch, calls) as adapter:
        with watched(make_engine(database.url).dialect) as watch:
            for _ in range(calls):
                with watch.on(OUR_CODE):
                    jobs = adapter.claim()
                    adapter.connection.commit()
                    adapter.finish(jobs)
                    adapter.connection.commit()
        return {stage: own / calls * 1e6 for stage, own in watch.corrected().items()}


def prepared(name: str, database: Database, batch: int, calls: int) -> closing[InTransactions]:
    """Connect an adapter, fill the table for so many calls, and warm up."""
    adapter: InTransactions = load(CATALOGUE[name].path_on(database.name))(database.url, batch)
    adapter.create()
    adapter.open()
    adapter.fill(batch * (calls + WARM_UP))
    database.settle()
    list(turns(adapter, WARM_UP))
    gc.collect()
    return closing(adapter)


def turns(adapter: InTransactions, calls: int) -> Iterator[tuple[float, ...]]:
    """Claim and finish batches; yield the seconds of CPU of each step."""
    clock = time.thread_time
    commit: Any = adapter.connection.commit
    for _ in range(calls):
        begun = clock()
        adapter.begin()
        jobs = adapter.claim()
        claimed = clock()
        commit()
        committed = clock()
        adapter.begin()
        adapter.finish(jobs)
        finished = clock()
        commit()
        ended = clock()
        assert len(jobs) == adapter.batch, f"{len(jobs)} of {adapter.batch} jobs were claimed"
        yield claimed - begun, committed - claimed, finished - committed, ended - finished
