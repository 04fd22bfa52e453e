"""What the mixin costs an insert: rows per second, beside the same model without it.

python -m benchmarks.enqueue --engine postgresql

Three tables: one without the queue's columns; one with columns and indexes like the
mixin's, but declared by hand, which shows what the table itself costs; and the queue.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import click
from sqlalchemy import Engine, Index, String, insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from benchmarks.adapters.catalogue import ENGINES
from benchmarks.adapters.model import Base, Job, Plain, make_engine
from benchmarks.harness.databases import database
from benchmarks.harness.report import say
from benchmarks.harness.written import RESULTS, table, write_json
from sa_jobqueue import enqueue
from sa_jobqueue.migration import timestamp_type
from tests.servers import ServerUnavailable


class ByHand(Base):
    """The queue's columns and indexes, without the mixin."""

    __tablename__ = "bench_by_hand"

    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(16), server_default="unclaimed")
    owner: Mapped[str | None] = mapped_column(String(64))
    owner_date: Mapped[datetime | None] = mapped_column(timestamp_type())


def _copy_indexes() -> None:
    for index in Job.__table__.indexes:  # type: ignore[attr-defined]  # of a Table, not of any FROM
        columns = [ByHand.__table__.c[column.key] for column in index.columns]
        name = str(index.name).replace("bench_job", "bench_by_hand")
        Index(name, *columns, **index.dialect_kwargs)


_copy_indexes()

Rows = list[dict[str, Any]]


def by_insert(session: Session, model: type[Any], rows: Rows) -> None:
    """Insert by SQLAlchemy's own bulk insert."""
    session.execute(insert(model), rows)


def by_add_all(session: Session, model: type[Any], rows: Rows) -> None:
    """Insert as entities."""
    session.add_all([model(**row) for row in rows])
    session.flush()


def by_enqueue(session: Session, model: type[Any], rows: Rows) -> None:
    """Insert by sa_jobqueue."""
    enqueue(session, model, rows)


@dataclass(frozen=True)
class Way:
    """One way to insert rows.

    Attributes:
        twin: the way without the mixin that it is compared with; its own name: none.
    """

    name: str
    model: type[Any]
    run: Callable[[Session, type[Any], Rows], None]
    twin: str


INSERT, ADD_ALL = "insert(Plain)", "add_all(Plain)"

WAYS = (
    Way(INSERT, Plain, by_insert, INSERT),
    Way("insert(ByHand)", ByHand, by_insert, INSERT),
    Way("insert(Job)", Job, by_insert, INSERT),
    Way("enqueue(Job)", Job, by_enqueue, INSERT),
    Way(ADD_ALL, Plain, by_add_all, ADD_ALL),
    Way("add_all(ByHand)", ByHand, by_add_all, ADD_ALL),
    Way("add_all(Job)", Job, by_add_all, ADD_ALL),
)


@dataclass(frozen=True)
class Enqueued:
    """What one way came to.

    Attributes:
        seconds: of each round, with its COMMIT.
        cpu: the same of this process alone.
        ratio: the median time by that of its twin.
        cpu_ratio: the same of the time of this process alone.
    """

    way: str
    twin: str
    rows: int
    rate: float
    ratio: float
    cpu_ratio: float
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]


def measure(url: str, *, rows: int, rounds: int) -> list[Enqueued]:
    """Insert so many rows in each way in turn, several rounds, each into empty tables."""
    engine = make_engine(url)
    times: dict[str, list[tuple[float, float]]] = {way.name: [] for way in WAYS}
    for number in range(-1, rounds):  # the first one warms up
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        # Each round begins with another one.
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
            timed = _insert(engine, way, rows)
            if number >= 0:
                times[way.name].append(timed)
    Base.metadata.drop_all(engine)
    engine.dispose()
    return [_summed(way, rows, times) for way in WAYS]


def _insert(engine: Engine, way: Way, rows: int) -> tuple[float, float]:
    made: Rows = [{"payload": f"payload {number}"} for number in range(rows)]
    gc.collect()
    with Session(engine) as session:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        way.run(session, way.model, made)
        session.commit()
        return time.perf_counter() - begun, time.process_time() - begun_cpu


def _summed(way: Way, rows: int, times: dict[str, list[tuple[float, float]]]) -> Enqueued:
    seconds, cpu = zip(*times[way.name], strict=True)
    twin_seconds, twin_cpu = zip(*times[way.twin], strict=True)
    return Enqueued(
        way=way.name,
        twin=way.twin,
        rows=rows,
        rate=round(rows / median(seconds), 1),
        ratio=round(median(seconds) / median(twin_seconds), 3),
        cpu_ratio=round(median(cpu) / median(twin_cpu), 3),
        seconds=seconds,
        cpu=cpu,
    )


def as_markdown(found: Sequence[Enqueued]) -> str:
    """Write a table, a way a row."""
    return table(
        ("", "rows/s", "time by that of", "", "CPU of the client"),
        [
            (one.way, f"{one.rate:,.0f}", one.twin, f"{one.ratio:.2f}", f"{one.cpu_ratio:.2f}")
            for one in found
        ],
    )


@click.command()
@click.option("--engine", type=click.Choice(ENGINES), required=True)
@click.option("--url", help="Of a server; by default the one that the tests would use.")
@click.option("--rows", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go."
)
def main(engine: str, url: str | None, rows: int, rounds: int, results: Path) -> None:
    """Insert rows in each way in turn, and compare with the same model without the mixin."""
    try:
        with database(engine, url) as made:
            found = measure(made, rows=rows, rounds=rounds)
            plain = {"rounds": rounds, "results": [asdict(one) for one in found]}
            path = write_json(results, "enqueue", engine, made, plain)
    except ServerUnavailable as error:
        raise click.ClickException(str(error)) from error
    say(as_markdown(found))
    say(f"written: {path}")


if __name__ == "__main__":
    main()
