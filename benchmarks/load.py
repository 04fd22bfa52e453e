"""Bulk loads beside one plain ``session.execute(insert(), rows)``, in turn.

    python -m benchmarks.load --engine postgresql

Rows are made before the clock starts; each way inserts the same ones, with a log in files
that is new each time, and its COMMITs, into an empty table without further indexes.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from sqlalchemy import Engine, MetaData, create_engine, func, insert, select
from sqlalchemy.orm import Session

from benchmarks.adapters.catalogue import ENGINES
from benchmarks.adapters.model import Base, Plain
from benchmarks.harness.databases import database
from benchmarks.harness.report import say
from benchmarks.harness.written import RESULTS, table, write_json
from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, Log, load_tables
from tests.servers import ServerUnavailable

Rows = list[dict[str, Any]]
Insert = Callable[[Engine, Rows, Path], None]


def plainly(engine: Engine, rows: Rows, folder: Path) -> None:
    """Insert by SQLAlchemy's own bulk insert, in one transaction."""
    with Session(engine) as session:
        session.execute(insert(Plain), rows)
        session.commit()


def by_load(*, workers: int, copy: bool = True, in_database: bool = False) -> Insert:
    """Insert by a load with a log."""

    def load(engine: Engine, rows: Rows, folder: Path) -> None:
        log: Log = DatabaseLog(engine) if in_database else FileLog(folder)
        BulkLoad(InsertSource(engine, Plain, rows, copy=copy), log, workers=workers).run()

    return load


PLAIN = "session.execute(insert(), rows)"

WAYS: dict[str, Insert] = {
    PLAIN: plainly,
    "load, 1 worker": by_load(workers=1),
    "load, 1 worker, DatabaseLog": by_load(workers=1, in_database=True),
    "load, 4 workers": by_load(workers=4),
}

#: PostgreSQL alone has COPY, which a load takes unless it is told not to.
WITHOUT_COPY: dict[str, Insert] = {
    "load, 1 worker, no COPY": by_load(workers=1, copy=False),
    "load, 4 workers, no COPY": by_load(workers=4, copy=False),
}


@dataclass(frozen=True)
class Loaded:
    """What one way came to.

    Attributes:
        seconds: of each round, with its COMMITs.
        ratio: the median over the rounds of its time by that of the plain insert.
    """

    way: str
    rows: int
    rate: float
    ratio: float
    seconds: tuple[float, ...]


def measure(url: str, *, rows: int, rounds: int) -> list[Loaded]:
    """Insert so many rows in each way in turn, several rounds, each into an empty table."""
    engine = create_engine(url)
    ways = WAYS | (WITHOUT_COPY if engine.dialect.name == "postgresql" else {})
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(-1, rounds):  # the first one warms up
        # Each round begins with another one.
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            lasted = _insert(engine, ways[name], rows)
            if number >= 0:
                times[name].append(lasted)
    engine.dispose()
    plain = times[PLAIN]
    return [
        Loaded(
            way=name,
            rows=rows,
            rate=round(rows / median(seconds), 1),
            ratio=round(median(one / other for one, other in zip(seconds, plain, strict=True)), 3),
            seconds=tuple(seconds),
        )
        for name, seconds in times.items()
    ]


def _insert(engine: Engine, way: Insert, rows: int) -> float:
    tables = load_tables(MetaData())
    for metadata in (Base.metadata, tables.loads.metadata):
        metadata.drop_all(engine)
        metadata.create_all(engine)
    made = [{"id": number, "payload": f"payload {number}"} for number in range(1, rows + 1)]
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        way(engine, made, Path(folder))
        lasted = time.perf_counter() - begun
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Plain)) == rows
    for metadata in (Base.metadata, tables.loads.metadata):
        metadata.drop_all(engine)
    return lasted


def as_markdown(found: Sequence[Loaded]) -> str:
    """Write a table, a way a row."""
    return table(
        ("", "rows/s", "time by that of the plain insert"),
        [(one.way, f"{one.rate:,.0f}", f"{one.ratio:.2f}") for one in found],
    )


@click.command()
@click.option("--engine", type=click.Choice(ENGINES), required=True)
@click.option("--url", help="Of a server; by default the one that the tests would use.")
@click.option("--rows", type=click.IntRange(1), default=200_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go."
)
def main(engine: str, url: str | None, rows: int, rounds: int, results: Path) -> None:
    """Insert rows in each way in turn, and compare with one plain insert."""
    try:
        with database(engine, url) as made:
            found = measure(made, rows=rows, rounds=rounds)
            plain = {"rounds": rounds, "results": [asdict(one) for one in found]}
            path = write_json(results, "load", engine, made, plain)
    except ServerUnavailable as error:
        raise click.ClickException(str(error)) from error
    say(as_markdown(found))
    say(f"written: {path}")


if __name__ == "__main__":
    main()
