"""Update many rows of a table in use: a batch, a commit, the next batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import gt, le, lt
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, and_, literal_column, or_, select, true, update
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import replacement_traverse

from ..errors import ArgumentError
from .runner import PATIENCE, Op, Runner, log
from .tables import AnyTable, bare_table, reflect_table

#: How many rows a batch spans at most.
BATCH = 5_000


def backfill(
    op: Op,
    table: AnyTable,
    where: str | ColumnElement[bool],
    *,
    values: Mapping[str, Any],
    batch: int = BATCH,
    pause: timedelta | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> int:
    """Change the rows of a criterion in batches by the primary key; commit each batch.

    This commits by itself, and with it whatever the migration did before. After an
    interruption it may be run again: let the criterion leave out rows that are written
    already. The progress is logged.

    Args:
        where: which rows, as SQL or as an expression.
        values: the new values, by column.
        batch: how many rows one transaction spans.
        pause: the time between two batches. By default there is none, except on
            SQLite, where nobody else can write during a batch: as long as the batch
            took.
        patience: how long each batch waits in all for rows that others have locked.

    Returns:
        how many rows were changed.

    Raises:
        ArgumentError: there is no database, or the table has no primary key.
        LockTimeout: others kept rows locked; the batches before are committed.
    """
    runner = Runner(op, patience=patience)
    bare = bare_table(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"backfill of {bare.name!r} goes batch by batch, which a --sql script cannot do: run "
            "the migration with a database"
        )
    with runner.outside_transaction():
        real = reflect_table(runner, bare)
        return update_rows(runner, real, bind_criterion(where, real), values, batch, pause)


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
    values: Mapping[str, Any],
    batch: int,
    pause: timedelta | None,
) -> int:
    """Change the rows of a criterion batch by batch, in :meth:`Runner.outside_transaction`."""
    written = 0
    for number, rows in enumerate(_ranges(runner, table, batch, pause), 1):
        change = update(table).where(where, rows).values(dict(values))
        written += _write(runner, change, what=f"{table.description}: UPDATE")
        log.info("%s: %d rows written, %d batches", table.name, written, number)
    return written


def _ranges(
    runner: Runner, table: Table, batch: int, pause: timedelta | None
) -> Iterator[ColumnElement[bool]]:
    """Walk along the primary key: yield a criterion for each batch."""
    found = sa_inspect(runner.connection).get_pk_constraint(table.name, table.schema)
    keys = [table.c[name] for name in found["constrained_columns"]]
    if not keys:
        raise ArgumentError(
            f"{table.description!r} has no primary key, and rows are written in batches by its "
            "ranges: add a primary key first"
        )
    after: ColumnElement[bool] = true()
    while True:
        began = time.monotonic()
        ends = select(*keys).where(after).order_by(*keys).offset(batch - 1).limit(1)
        end = runner.connection.execute(ends).first()
        if end is None:
            yield after
            return
        yield and_(after, _compared(keys, end, lt, le))
        after = _compared(keys, end, gt, gt)
        took = time.monotonic() - began if runner.database.one_writer else 0.0
        time.sleep(took if pause is None else pause.total_seconds())


def _compared(
    keys: Sequence[Column[Any]],
    values: Sequence[Any],
    compare: Callable[[Any, Any], Any],
    last: Callable[[Any, Any], Any],
) -> ColumnElement[bool]:
    """Compare keys column by column: InnoDB uses no range for (a, b) > (1, 2)."""
    pairs = list(zip(keys, values, strict=True))
    return or_(
        *(
            and_(
                *(before == known for before, known in pairs[:index]),
                (last if index == len(pairs) - 1 else compare)(key, value),
            )
            for index, (key, value) in enumerate(pairs)
        )
    )


def _write(runner: Runner, change: Any, *, what: str) -> int:
    """Write one batch; wait only briefly for a locked row, since others wait for our locks."""
    connection, changes = runner.connection, runner.changes

    def write() -> int:
        with (
            changes.waiting_at_most(connection, changes.longest_wait(connection)),
            runner.database.transaction_in_autocommit(connection),
        ):
            return connection.execute(change).rowcount

    return runner.retry_while_locked(
        write, what=what, leaves="The batches before this one are committed."
    )
