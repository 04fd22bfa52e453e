"""Tables that grow to a wanted size, filled in bulk, and keep it while they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Engine,
    FromClause,
    Insert,
    String,
    cast,
    delete,
    insert,
    literal,
    select,
    true,
)

from benchmarks.adapters.model import Base, Job, Numbered
from sa_jobqueue import JobMixin, utc_now

#: Rows of a transaction.
CHUNK = 100_000

#: Numbers are made of a low and a high part below this: a recursive CTE of MySQL and MariaDB ends
#: at a thousand rows unless a variable is set.
THOUSAND = 1_000

#: How many workers finished the rows that are done, and how long each job took.
OWNERS = 8
MICROSECONDS_EACH = 10_000


class Small(Numbered, JobMixin, Base):
    """The same table as Job's, which keeps its size."""

    __tablename__ = "bench_small"


class Growing:
    """A table, and how many of its rows are done.

    Args:
        entity: Job or Small.
    """

    def __init__(self, engine: Engine, entity: type[Any]) -> None:
        self.engine = engine
        self.entity: type[Any] = entity
        self.done = 0
        self._next = 1

    def create(self) -> None:
        """Make the table anew, empty."""
        self.entity.__table__.drop(self.engine, checkfirst=True)
        self.entity.__table__.create(self.engine)

    def grow(self, done: int, backlog: int) -> None:
        """Grow to so many rows done, and so many unclaimed behind them.

        Raises:
            ValueError: more rows are done already.
        """
        if done < self.done:
            raise ValueError(f"{self.done} rows are done already: name sizes from small to large")
        with self.engine.begin() as connection:
            connection.execute(delete(self.entity).where(self.entity.status == "unclaimed"))
        self._insert(done - self.done, done=True)
        self.done = done
        self._insert(backlog, done=False)

    def put_back(self, ids: Sequence[int]) -> None:
        """Delete rows that were finished, and insert as many unclaimed rows: the sizes stay."""
        rows = [{"id": self._next + index, "payload": "put back"} for index in range(len(ids))]
        self._next += len(ids)
        with self.engine.begin() as connection:
            connection.execute(delete(self.entity).where(self.entity.id.in_(ids)))
            connection.execute(insert(self.entity), rows)

    def _insert(self, count: int, *, done: bool) -> None:
        end = self._next + count
        for first in range(self._next, end, CHUNK):
            statement = bulk(self.entity, first, min(first + CHUNK, end) - 1, end, done=done)
            with self.engine.begin() as connection:
                connection.execute(statement)
        self._next = end


def bulk(entity: type[Any], first: int, last: int, end: int, *, done: bool) -> Insert:
    """Insert the rows `first` to `last`; the database makes them, so none is sent.

    Args:
        end: the number after the last of all; the rows before it were finished one by one.
    """
    number, source, within = numbers(first, last)
    values: dict[str, ColumnElement[Any]] = {
        "id": number,
        "payload": literal("payload ") + cast(number, String(20)),
        "status": literal("done" if done else "unclaimed"),
    }
    if done:
        values["owner"] = literal("host-") + cast(number % OWNERS, String(20))
        values["owner_date"] = utc_now(cast(number - end, BigInteger) * MICROSECONDS_EACH)
    counted = select(*values.values()).select_from(source).where(within)
    return insert(entity).from_select(list(values), counted)


def numbers(first: int, last: int) -> tuple[ColumnElement[int], FromClause, ColumnElement[bool]]:
    """Count from `first` to `last`, at most a million: an expression, its source and criterion."""
    digits = select(literal(0).label("n")).cte("digits", recursive=True)
    digits = digits.union_all(select(digits.c.n + 1).where(digits.c.n < THOUSAND - 1))
    low, high = digits.alias("low"), digits.alias("high")
    number = high.c.n * THOUSAND + low.c.n + first
    within = (high.c.n <= (last - first) // THOUSAND) & (number <= last)
    return number, high.join(low, true()), within


def both(engine: Engine) -> tuple[Growing, Growing]:
    """Make the table that grows, and the small table beside it."""
    made = Growing(engine, Job), Growing(engine, Small)
    for table in made:
        table.create()
    return made
