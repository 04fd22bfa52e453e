"""Create and drop the tables of control and of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import MetaData, Table
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from ..control.tables import make_tables
from ..schedules.table import schedule_class
from .runner import Op, Runner
from .tables import naming_convention


def create_control_tables(op: Op, *, prefix: str = "job", schema: str | None = None) -> None:
    """Create the tables of workers, pauses and stop requests, in the migration's transaction.

    They are new and empty, so nobody waits. Where a table is there already, it stays.

    Args:
        prefix: as for :func:`sa_jobqueue.control.control_tables`.
        schema: the schema of the tables, also where it is that of the metadata.
    """
    runner = Runner(op)
    _create(runner, _control(runner, prefix, schema))


def drop_control_tables(op: Op, *, prefix: str = "job", schema: str | None = None) -> None:
    """Drop the tables of workers, pauses and stop requests, in the migration's transaction.

    Missing tables are skipped. Workers go on without them.

    Args:
        prefix, schema: as in :func:`create_control_tables`.
    """
    runner = Runner(op)
    _drop(runner, _control(runner, prefix, schema))


def create_schedules_table(
    op: Op, *, name: str = "job_schedules", schema: str | None = None
) -> None:
    """Create the table of schedules, in the migration's transaction.

    Where it is there already, it stays.

    Args:
        name: as for :class:`sa_jobqueue.schedules.Schedules`.
        schema: the schema of the table, also where it is that of the metadata.
    """
    runner = Runner(op)
    _create(runner, [_schedules(runner, name, schema)])


def drop_schedules_table(op: Op, *, name: str = "job_schedules", schema: str | None = None) -> None:
    """Drop the table of schedules, in the migration's transaction; skip it where it is missing.

    Args:
        name, schema: as in :func:`create_schedules_table`.
    """
    runner = Runner(op)
    _drop(runner, [_schedules(runner, name, schema)])


# The tables are those of a MetaData of their own: a migration does the same as long as it is kept.


def _control(runner: Runner, prefix: str, schema: str | None) -> Sequence[Table]:
    naming = naming_convention(runner, f"{prefix}_workers", schema)
    tables = make_tables(MetaData(naming_convention=naming), prefix, schema)
    return [tables.workers, tables.pauses, tables.stops]


def _schedules(runner: Runner, name: str, schema: str | None) -> Table:
    naming = naming_convention(runner, name, schema)
    entity: Any = schedule_class(MetaData(naming_convention=naming), name, schema)
    table: Table = entity.__table__
    return table


def _create(runner: Runner, tables: Sequence[Table]) -> None:
    for table in tables:
        runner.run(CreateTable(table, if_not_exists=True))
        there = _indexes(runner, table)
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in there:
                runner.run(CreateIndex(index))


def _indexes(runner: Runner, table: Table) -> set[str | None]:
    """Return the names of a table's indexes; those of a script's table are not known."""
    if runner.offline:
        return set()
    found = sa_inspect(runner.connection).get_indexes(table.name, table.schema)
    return {index["name"] for index in found}


def _drop(runner: Runner, tables: Sequence[Table]) -> None:
    for table in reversed(tables):
        runner.run(DropTable(table, if_exists=True))
