"""What claims cost when a table has grown, and when others are at work on it.

* The latency of claim and finish, by rows already done and by backlog, in a table that grows;
  without and with an old snapshot that somebody keeps open.
* The rate over the course of a drain, without and with an old snapshot.
* Producers and consumers at once: latencies, and the errors of the database.
"""

from __future__ import annotations

import click

from benchmarks.growth import courses, crowd, sizes
from benchmarks.growth.plot import draw
from benchmarks.harness.command import ROUNDS, benchmark, number, numbers
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, titled


def tables(figures: Figures) -> str:
    """Write a table for each part; those of parts that were not measured are left out."""
    return titled(
        (f"By rows done. {sizes.RATIOS}", sizes.COLUMNS, figures["done"]),
        (f"By backlog. {sizes.RATIOS}", sizes.COLUMNS, figures["backlog"]),
        ("Jobs per second in each tenth of a drain", courses.COLUMNS, figures["courses"]),
        ("Producers and consumers at once", crowd.COLUMNS, figures["crowds"]),
    )


@benchmark(
    numbers("--done", "1000,100000,1000000,5000000"),
    numbers("--backlog", "20000,200000,1000000"),
    number("--batch", 100),
    number("--claims", 300),
    number("--drained", 50_000, least=0),
    number("--workers", 4),
    ROUNDS,
    number("--produced", 10_000, least=0),
    number("--producers", 2),
    number("--consumers", 8),
    numbers("--crowd-batches", "1,10,100"),
    tables=tables,
    draw=draw,
)
def main(
    database: Database,
    *,
    done: tuple[int, ...],
    backlog: tuple[int, ...],
    batch: int,
    claims: int,
    drained: int,
    workers: int,
    rounds: int,
    produced: int,
    producers: int,
    consumers: int,
    crowd_batches: tuple[int, ...],
) -> Figures:
    """Time claim and finish by rows done and by backlog; count the errors of a crowd.

    The rows done grow while the backlog stays at its first size, and the other way round.
    --claims are timed at each size. --drained jobs are one whole drain, --produced jobs are
    inserted by each producer; 0 leaves a part out.
    """
    _check(done, backlog, batch, drained)
    by_done = [sizes.Size(size, backlog[0]) for size in done]
    by_backlog = [sizes.Size(done[0], size) for size in backlog]
    return {
        "done": list(sizes.measure_sizes(database, by_done, batch=batch, claims=claims)),
        "backlog": list(sizes.measure_sizes(database, by_backlog, batch=batch, claims=claims)),
        "courses": courses.measure_courses(
            database,
            courses.ways(database.name, peers=False)[:1],
            batch=batch,
            workers=workers,
            jobs=drained,
            rounds=rounds,
        )
        if drained
        else [],
        "crowds": [
            crowd.measure_crowd(
                database, way, batch=size, producers=producers, consumers=consumers, jobs=produced
            )
            for size in crowd_batches
            for way in crowd.CONSUMERS
            if produced
        ],
    }


def _check(done: tuple[int, ...], backlog: tuple[int, ...], batch: int, drained: int) -> None:
    """Refuse sizes that cannot be measured."""
    fewest = courses.PARTS * batch
    if 0 < drained < fewest:
        raise click.UsageError(f"a drain in {courses.PARTS} parts has at least {fewest} jobs")
    if min(backlog) < 2 * batch:
        raise click.UsageError(f"a backlog has at least {2 * batch} jobs, two batches")
    if any(list(ascending) != sorted(ascending) for ascending in (done, backlog)):
        raise click.UsageError("name sizes from small to large")
