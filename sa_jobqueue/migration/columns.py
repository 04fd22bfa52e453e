"""Add the queue's columns to a table that has rows, and drop them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement
from sqlalchemy.schema import CreateTable, DropTable

from ..dialects.ddl import DropColumns
from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..model.mixins import QueueColumns
from ..model.round_table import round_table
from .adoption import Adoption
from .backfill_rows import BATCH, Batches, Progress
from .runner import PATIENCE, Op, Runner
from .tables import AnyTable, existing_columns, mapping_for


def add_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    existing_rows: str | ColumnElement[bool] | None,
    schema: str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    batch: int = BATCH,
    pause: timedelta | None = None,
    progress: Callable[[Progress], object] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Make a queue of a table that may have rows, while others go on writing to it.

    RoundMixin also creates the table that remembers the rounds. This commits by itself,
    and with it whatever the migration did before. After an interruption it may be run
    again.

    Args:
        table: a table's name, a Table or a mapped class; the latter two need no mixins.
        mixins: the model's mixins, such as ``JobMixin`` (the default) and
            ``PriorityMixin``, or ``JobMixin.named(..)``.
        existing_rows: what happens to the rows that are there: ``"done"``,
            ``"unclaimed"``, or a criterion: rows that fit it become jobs, the others
            are done. None where no mixin has a status.
        queue_args: the model's ``__queue_args__``, where it has words of its own for
            the statuses.
        batch, pause, progress: as in :func:`backfill`, for rows that get their status
            batch by batch: with a criterion, and on SQLite.
        patience: how long to wait in all for each lock, a second at most at a time.

    Raises:
        ArgumentError: `existing_rows` is missing; the table has columns of the same
            names; there is a criterion, but no database; a batch has no row.
        LockTimeout: others kept the table, or some of its rows, locked.
    """
    runner = Runner(op, patience=patience)
    batches = Batches(size=batch, pause=pause, progress=progress)
    queue = mapping_for(runner, table, mixins, queue_args=queue_args, schema=schema)
    columns = _columns_of(queue, mixins)
    adoption = Adoption(runner, queue, columns, existing_rows, batches)
    adoption.check()
    with runner.outside_transaction():
        adoption.run()
        if _include_rounds(queue, columns):
            rounds = round_table(queue)
            runner.change([CreateTable(rounds, if_not_exists=True)], what=rounds.description)


def drop_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the queue's columns from a table.

    Drop the indexes of claims and reapers before. The columns of RoundMixin take the
    table that remembers the rounds with them.

    Missing columns are skipped, so after an interruption it may be run again.

    Args:
        table, mixins, schema, patience: as in :func:`add_job_columns`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    queue = mapping_for(runner, table, mixins, queue_args=None, schema=schema)
    columns = _columns_of(queue, mixins)
    with_rounds = _include_rounds(queue, columns)
    with runner.outside_transaction():
        if not runner.offline:
            existing = existing_columns(runner, queue.table)
            columns = [column for column in columns if column.name in existing]
        ending = runner.changes.instant(drop=True)
        groups = runner.altered_together(columns)
        runner.change(
            [DropColumns(queue.table, group, ending=ending) for group in groups],
            what=f"{queue.table.description}: DROP COLUMN",
        )
        if with_rounds:
            rounds = round_table(queue)
            runner.change([DropTable(rounds, if_exists=True)], what=rounds.description)


def _include_rounds(queue: QueueMapping, columns: list[Column[Any]]) -> bool:
    return queue.has("round") and any(column is queue.column("round") for column in columns)


def _columns_of(queue: QueueMapping, mixins: tuple[type[QueueColumns], ...]) -> list[Column[Any]]:
    """List the columns of the given mixins, or of all the queue's mixins, in table order."""
    roles = {role for mixin in mixins for role in mixin.__queue_attributes__}
    if missing := sorted(role for role in roles if not queue.has(role)):
        raise ArgumentError(f"{queue} has no column for {missing[0]}: add its mixin to the class")
    columns = {queue.column(role) for role in roles or queue.attributes}
    return [column for column in queue.table.columns if column in columns]
