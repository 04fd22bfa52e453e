"""Update many rows of a table in use: a batch, a commit, the next batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
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
from .runner import PATIENCE, Op, Runner, log
from .tables import AnyTable, name_and_schema, reflect_table

#: How many rows a batch spans at most.
BATCH = 5_000

_WRITTEN = "The batches before this one are committed."


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a backfill is.

    Attributes:
        batches: how many batches are committed.
        written: how many rows were changed.
        key: the primary key of the latest batch's last row; None: this was the final
            batch.
    """

    batches: int
    written: int
    key: tuple[Any, ...] | None


@dataclass(frozen=True, kw_only=True)
class Batches:
    """How rows are written: how many in a batch, how fast, and what reports the progress.

    Attributes:
        size: how many rows one transaction spans.
        pause: the time between two batches. By default there is none, except on
            SQLite, where nobody else can write during a batch: as long as the batch
            took.
        progress: called after each commit; by default the progress is logged.

    Raises:
        ArgumentError: `size` is below 1.
    """

    size: int = BATCH
    pause: timedelta | None = None
    progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ArgumentError(f"a batch has at least one row: {self.size!r}")

    def report(self, state: Progress, table: Table) -> None:
        """Report the progress."""
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
    """Change the rows of a criterion in batches by the primary key; commit each batch.

    This commits by itself, and with it whatever the migration did before. After an
    interruption it may be run again: let the criterion leave out rows that are written
    already.

    Args:
        where: which rows, as SQL or as an expression.
        values: the new values, by column.
        batch: how many rows one transaction spans.
        pause: the time between two batches. By default there is none, except on
            SQLite, where nobody else can write during a batch: as long as the batch
            took.
        progress: called after each commit; by default the progress is logged.
        patience: how long each batch waits in all for rows that others have locked.

    Returns:
        how many rows were changed.

    Raises:
        ArgumentError: there is no database; the table has no primary key; `batch` is
            below 1.
        LockTimeout: others kept rows locked; the batches before are committed.
    """
    runner = Runner(op, patience=patience)
    batches = Batches(size=batch, pause=pause, progress=progress)
    name, schema = name_and_schema(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"backfill of {name!r} goes batch by batch, which a --sql script cannot do: run the "
            "migration with a database"
        )
    with runner.outside_transaction():
        real = reflect_table(runner, name, schema)
        return update_rows(
            runner, real, bind_criterion(where, real), values=values, batches=batches
        )


def bind_criterion(where: str | ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Make a criterion refer to `table`: another Table of the same name would be a join."""
    if isinstance(where, str):
        return literal_column(f"({where})")

    def column_of_table(element: Any, **kw: Any) -> Any:
        if isinstance(element, ColumnClause) and element.table is not None:
            same_name = getattr(element.table, "name", None) == table.name
            return table.c.get(element.name) if same_name else None
        return None

    bound: ColumnElement[bool] = replacement_traverse(where, {}, column_of_table)
    return bound


def update_rows(
    runner: Runner,
    table: Table,
    where: ColumnElement[bool],
    *,
    values: Mapping[str, Any],
    batches: Batches,
) -> int:
    """Change the rows of a criterion batch by batch, in :meth:`Runner.outside_transaction`."""
    change = update(table).where(where).values(dict(values))
    written = 0
    for number, (rows, last) in enumerate(_ranges(runner, table, batches), 1):
        written += _write(runner, change.where(rows), table)
        batches.report(Progress(batches=number, written=written, key=last), table)
    return written


def _ranges(
    runner: Runner, table: Table, batches: Batches
) -> Iterator[tuple[ColumnElement[bool], tuple[Any, ...] | None]]:
    """Walk along the primary key: yield a criterion for each batch, and its last row's key."""
    keys = _key_columns(runner, table)
    after: Sequence[Any] | None = None
    while True:
        began = time.monotonic()
        end = _last_key(runner, keys, after, batches.size)
        if end is None:
            yield _after(keys, after), None
            return
        yield and_(_after(keys, after), _up_to(keys, end)), tuple(end)
        after = end
        took = time.monotonic() - began
        default = took if runner.database.one_writer else 0.0
        time.sleep(default if batches.pause is None else batches.pause.total_seconds())


def _key_columns(runner: Runner, table: Table) -> list[Column[Any]]:
    found = sa_inspect(runner.connection).get_pk_constraint(table.name, table.schema)
    if not found["constrained_columns"]:
        raise ArgumentError(
            f"{table.description!r} has no primary key, and rows are written in batches by its "
            "ranges: add a primary key first"
        )
    return [table.c[name] for name in found["constrained_columns"]]


def _last_key(
    runner: Runner, keys: list[Column[Any]], after: Sequence[Any] | None, batch: int
) -> Row[Any] | None:
    """Return the key of a batch's last row; None: fewer rows than a batch are left."""
    end = select(*keys).where(_after(keys, after)).order_by(*keys).offset(batch - 1).limit(1)
    return runner.connection.execute(end).first()


# Keys of several columns are compared column by column: InnoDB uses no range for
# (a, b) > (1, 2).


def _after(keys: Sequence[Column[Any]], after: Sequence[Any] | None) -> ColumnElement[bool]:
    if after is None:
        return true()
    return or_(
        *(and_(*_equal(keys[:index], after), key > after[index]) for index, key in enumerate(keys))
    )


def _up_to(keys: Sequence[Column[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    *leading, end = range(len(keys))
    return or_(
        *(and_(*_equal(keys[:index], last), keys[index] < last[index]) for index in leading),
        and_(*_equal(keys[:end], last), keys[end] <= last[end]),
    )


def _equal(keys: Sequence[Column[Any]], values: Sequence[Any]) -> list[ColumnElement[bool]]:
    return [key == value for key, value in zip(keys, values, strict=False)]


def _write(runner: Runner, change: Update, table: Table) -> int:
    """Write one batch; wait only briefly for a locked row, since others wait for our locks."""

    def write() -> int:
        with (
            runner.waiting_briefly(),
            runner.database.transaction_in_autocommit(runner.connection),
        ):
            return runner.connection.execute(change).rowcount

    return runner.retry_while_locked(
        write, what=f"{table.description}: UPDATE", leaves=lambda: _WRITTEN
    )
