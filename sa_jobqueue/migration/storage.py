"""Storage parameters for a table whose rows change a few times and then stay."""

from __future__ import annotations

from ..dialects.schema_changes import SetStorage
from .runner import Op, Runner, log
from .tables import AnyTable, bare_table


def tune_storage(
    op: Op,
    table: AnyTable,
    *,
    fillfactor: int = 90,
    dead_rows: int = 10_000,
    schema: str | None = None,
) -> None:
    """Make PostgreSQL vacuum a queue's table in time; other databases are left as they are.

    By default autovacuum waits until a fifth of the table is dead. In a table of ten
    million done rows these are two million dead rows, which claims walk over.

    Each partition of a table is tuned that exists now. For a partition that is created
    later, call this again with the partition or with the table.

    Args:
        fillfactor: how full pages are written from now on, in percent. The rest stays free
            for new versions of their rows.
        dead_rows: how many changed rows start autovacuum and autoanalyze.
    """
    _alter(op, table, schema, fillfactor=fillfactor, dead_rows=dead_rows)


def reset_storage(op: Op, table: AnyTable, *, schema: str | None = None) -> None:
    """Undo :func:`tune_storage`: restore the server's defaults."""
    _alter(op, table, schema, reset=True, fillfactor=0, dead_rows=0)


def _alter(
    op: Op, table: AnyTable, schema: str | None, *, reset: bool = False, **values: int
) -> None:
    runner = Runner(op)
    parameters = runner.changes.storage_of_queue(**values)
    if not parameters:
        return
    whole = bare_table(table, schema)
    parts = runner.partitions_of(whole)
    if parts is not None:
        later = (
            "each with storage parameters of its own; partitions that are created later need them"
        )
        log.info("%s has %d partitions, %s too", whole.description, len(parts), later)
    for part in [whole] if parts is None else parts:
        runner.run(SetStorage(part, parameters, reset=reset))
