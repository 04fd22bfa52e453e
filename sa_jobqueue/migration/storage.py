"""Storage parameters for a table whose rows change a few times and then stay."""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects.ddl import SetStorage
from .runner import Op, Runner, log
from .tables import AnyTable, as_table

#: A tenth of each page stays free for new versions of its rows.
FILLFACTOR = 90

#: Autovacuum starts at this number of dead rows, however many rows are done.
DEAD_ROWS = 10_000


def tune_storage(
    op: Op,
    table: AnyTable,
    *,
    fillfactor: int = FILLFACTOR,
    dead_rows: int = DEAD_ROWS,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
) -> None:
    """Make PostgreSQL vacuum a queue's table in time; other databases are left as they are.

    By default autovacuum waits until a fifth of the table is dead. In a table of ten
    million done rows these are two million dead rows, which claims walk over.

    Each partition of a table is tuned that exists now. For a partition that is created
    later, call this again with the partition or with the table.

    Args:
        fillfactor: how full pages are written from now on, in percent.
        dead_rows: how many changed rows start autovacuum and autoanalyze.
        partitions: the names of the table's partitions, for --sql only; None: it has
            no partitions.
    """
    runner = Runner(op, partitions=partitions)
    _alter(runner, table, schema=schema, fillfactor=fillfactor, dead_rows=dead_rows)


def reset_storage(
    op: Op, table: AnyTable, *, schema: str | None = None, partitions: Sequence[str] | None = None
) -> None:
    """Undo :func:`tune_storage`: restore the server's defaults.

    Args:
        partitions: as in :func:`tune_storage`.
    """
    _alter(Runner(op, partitions=partitions), table, schema=schema, reset=True)


def _alter(
    runner: Runner,
    table: AnyTable,
    *,
    schema: str | None,
    fillfactor: int = FILLFACTOR,
    dead_rows: int = DEAD_ROWS,
    reset: bool = False,
) -> None:
    parameters = runner.changes.storage_of_queue(fillfactor=fillfactor, dead_rows=dead_rows)
    if not parameters:
        return
    whole = as_table(table, schema)
    parts = runner.partitions_of(whole)
    if parts is not None:
        log.info(
            "%s has %d partitions, each with storage parameters of its own; partitions that are "
            "created later need them too",
            whole.description,
            len(parts),
        )
    for part in [whole] if parts is None else parts:
        runner.run(SetStorage(part, parameters, reset=reset))
