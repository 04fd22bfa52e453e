"""Ways to insert the same rows, compared: rows a second, and the time by a baseline's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from sqlalchemy import Engine, MetaData, func, insert, select
from sqlalchemy.orm import Session

from benchmarks.harness.report import Row
from benchmarks.harness.rounds import in_turn, median_ratio
from benchmarks.harness.timing import Timed, timed

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """A way to insert rows.

    Attributes:
        model: the mapped class that the rows are inserted into.
        insert: inserts them, with its COMMITs.
        twin: the name of the way that it is compared with; of a baseline, its own name.
    """

    model: type[Any]
    insert: Callable[[Engine, Rows], None]
    twin: str


def by_insert(session: Session, model: type[Any], rows: Rows) -> None:
    """Insert by SQLAlchemy's own bulk insert."""
    session.execute(insert(model), rows)


def by_session(
    model: type[Any], run: Callable[[Session, type[Any], Rows], object], twin: str
) -> Way:
    """Make a way to insert in a Session, in one transaction."""

    def committed(engine: Engine, rows: Rows) -> None:
        with Session(engine) as session:
            run(session, model, rows)
            session.commit()

    return Way(model, committed, twin)


def compare_inserts(
    engine: Engine,
    ways: Mapping[str, Way],
    metadatas: tuple[MetaData, ...],
    make_rows: Callable[[], Rows],
    rounds: int,
) -> list[Row]:
    """Insert rows in each way in turn, each time into empty tables.

    A first round warms up.

    Args:
        metadatas: the tables, which are made anew for each insert.
        make_rows: makes the rows anew for each insert, before the clock starts.
    """
    runs = {name: partial(_time, engine, way, metadatas, make_rows) for name, way in ways.items()}
    times = in_turn(runs, rounds, warm_up=1)
    engine.dispose()
    return [_row(name, way.twin, len(make_rows()), times) for name, way in ways.items()]


def _time(
    engine: Engine, way: Way, metadatas: tuple[MetaData, ...], make_rows: Callable[[], Rows]
) -> Timed:
    for metadata in metadatas:
        metadata.drop_all(engine)
        metadata.create_all(engine)
    rows = make_rows()
    took = timed(lambda: way.insert(engine, rows))
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(way.model)) == len(rows)
    for metadata in metadatas:
        metadata.drop_all(engine)
    return took


def _row(name: str, twin: str, rows: int, times: Mapping[str, list[Timed]]) -> Row:
    seconds = [took.seconds for took in times[name]]
    cpu = [took.cpu for took in times[name]]
    return {
        "way": name,
        "twin": twin,
        "rows": rows,
        "rate": round(rows / median(seconds), 1),
        "ratio": median_ratio(seconds, (took.seconds for took in times[twin])),
        "cpu_ratio": median_ratio(cpu, (took.cpu for took in times[twin])),
        "seconds": seconds,
        "cpu": cpu,
    }
