"""Write to many rows of a table in use: a batch, a commit, the next batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Row,
    Table,
    Update,
    and_,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import replacement_traverse

from ..errors import ArgumentError
from .running import PATIENCE, Op, Runner, log
from .targets import AnyTable, name_of

#: How many rows a batch looks at, at most.
BATCH = 5_000

_WRITTEN = "The batches before this one are written, and stay so."


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a backfill is.

    Attributes:
        batches: how many were committed.
        written: how many rows were changed.
        key: the primary key that the last batch ended with; None: it was the last.
    """

    batches: int
    written: int
    key: tuple[Any, ...] | None


@dataclass(frozen=True, kw_only=True)
class Batches:
    """How rows are written: how many at once, how fast, and who is told.

    Attributes:
        size: how many rows one transaction looks at.
        pause: between two batches; by default none, but on SQLite, where nobody
            else writes meanwhile, as long as the batch took.
        progress: called after each commit; by default it is logged.

    Raises:
        ArgumentError: batches of no row.
    """

    size: int = BATCH
    pause: timedelta | None = None
    progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ArgumentError(f"a batch has at least one row: {self.size!r}")

    def tell(self, state: Progress, table: Table) -> None:
        """Say how far it is."""
        if self.progress is not None:
            self.progress(state)
        else:
            log.info("%s: %d rows written, %d batches", table.name, state.written, state.batches)


def backfill(
    op: Op,
    table: AnyTable,
    where: str | ColumnElement[bool],
    *,
    values: Mapping[str, Any],
    batch: int = BATCH,
    pause: timedelta | None = None,
    progress: Callable[[Progress], object] | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> int:
    """Change the rows of a criterion, in batches by the primary key, each committed.

    Commits by itself: what the migration did before it is committed, too. Broken
    off, it may be run again: let the criterion leave out what is written already.

    Args:
        where: which rows, as SQL or as an expression.
        values: what they get, by column.
        batch: how many rows one transaction looks at.
        pause: between two batches; by default none, but on SQLite, where nobody
            else writes meanwhile, as long as the batch took.
        progress: called after each commit; by default it is logged.
        patience: how long each batch waits in all for rows that others have locked.

    Returns:
        how many rows were changed.

    Raises:
        ArgumentError: no database, a table without a primary key, batches of no row.
        LockTimeout: others kept rows locked; the batches before are written.
    """
    runner = Runner(op, patience=patience)
    batches = Batches(size=batch, pause=pause, progress=progress)
    name, schema = name_of(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"backfill of {name!r} goes batch by batch, which --sql cannot write down: run the "
            "migration with a database"
        )
    with runner.alone():
        real = table_of(runner, name, schema)
        return fill(runner, real, criterion(where, real), values=values, batches=batches)


def table_of(runner: Runner, name: str, schema: str | None) -> Table:
    """Read from the database what a table is made of."""
    return Table(
        name, MetaData(), schema=schema, autoload_with=runner.connection, resolve_fks=False
    )


def criterion(where: str | ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Bind a criterion to our Table: one about another Table of that name would be a join."""
    if isinstance(where, str):
        return literal_column(f"({where})")

    def ours(element: Any, **kw: Any) -> Any:
        if isinstance(element, ColumnClause) and element.table is not None:
            named = getattr(element.table, "name", None) == table.name
            return table.c.get(element.name) if named else None
        return None

    bound: ColumnElement[bool] = replacement_traverse(where, {}, ours)
    return bound


def fill(
    runner: Runner,
    table: Table,
    where: ColumnElement[bool],
    *,
    values: Mapping[str, Any],
    batches: Batches,
) -> int:
    """Change the rows of a criterion, batch by batch; inside :meth:`Runner.alone`."""
    change = update(table).where(where).values(dict(values))
    written = 0
    for number, (span, last) in enumerate(_spans(runner, table, batches), 1):
        written += _write(runner, change.where(span), table)
        batches.tell(Progress(batches=number, written=written, key=last), table)
    return written


def _spans(
    runner: Runner, table: Table, batches: Batches
) -> Iterator[tuple[ColumnElement[bool], tuple[Any, ...] | None]]:
    """Walk along the primary key: yield each batch's rows, and the key of the last of them."""
    keys = _keys(runner, table)
    after: Sequence[Any] | None = None
    while True:
        began = time.monotonic()
        end = _end_of_batch(runner, keys, after, batches.size)
        if end is None:
            yield _beyond(keys, after), None
            return
        yield and_(_beyond(keys, after), _upto(keys, end)), tuple(end)
        after = end
        took = time.monotonic() - began
        default = took if runner.database.one_writer else 0.0
        time.sleep(default if batches.pause is None else batches.pause.total_seconds())


def _keys(runner: Runner, table: Table) -> list[Column[Any]]:
    found = sa_inspect(runner.connection).get_pk_constraint(table.name, table.schema)
    if not found["constrained_columns"]:
        raise ArgumentError(
            f"{table.description!r} has no primary key, by whose ranges rows are written batch by "
            "batch; give it one first"
        )
    return [table.c[name] for name in found["constrained_columns"]]


def _end_of_batch(
    runner: Runner, keys: list[Column[Any]], after: Sequence[Any] | None, batch: int
) -> Row[Any] | None:
    """Return the key of a batch's last row; None where fewer rows are left."""
    end = select(*keys).where(_beyond(keys, after)).order_by(*keys).offset(batch - 1).limit(1)
    return runner.connection.execute(end).first()


# Keys of several columns are compared column by column: (a, b) > (1, 2) is no range to InnoDB.


def _beyond(keys: Sequence[Column[Any]], after: Sequence[Any] | None) -> ColumnElement[bool]:
    if after is None:
        return true()
    return or_(
        *(and_(*_equal(keys[:place], after), key > after[place]) for place, key in enumerate(keys))
    )


def _upto(keys: Sequence[Column[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    *leading, end = range(len(keys))
    return or_(
        *(and_(*_equal(keys[:place], last), keys[place] < last[place]) for place in leading),
        and_(*_equal(keys[:end], last), keys[end] <= last[end]),
    )


def _equal(keys: Sequence[Column[Any]], values: Sequence[Any]) -> list[ColumnElement[bool]]:
    return [key == value for key, value in zip(keys, values, strict=False)]


def _write(runner: Runner, change: Update, table: Table) -> int:
    """Write one batch; wait for a locked row only briefly, since others wait for ours."""

    def write() -> int:
        with (
            runner.waiting_briefly(),
            runner.database.transaction_in_autocommit(runner.connection),
        ):
            return runner.connection.execute(change).rowcount

    return runner.patiently(write, what=f"{table.description}: UPDATE", leaves=lambda: _WRITTEN)
