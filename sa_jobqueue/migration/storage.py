"""Storage parameters for tables whose rows change several times and then rest."""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects.ddl import SetStorage
from .running import Op, Runner, log
from .targets import AnyTable, as_table

#: A tenth of each page stays free, for the next version of a row of the same page.
FILLFACTOR = 90

#: As many dead rows bring autovacuum, however many rows are done.
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
    """Have PostgreSQL clean a queue's table up in time; nothing is done elsewhere.

    By default autovacuum waits until a fifth of the table is dead: in a table of
    ten million done rows, for two million dead ones, over which claims walk.

    Of a table in partitions each one that is there is tuned. One that is made later
    is not: name that one here, or the table once more.

    Args:
        fillfactor: how full pages are made, in percent; for pages written from now on.
        dead_rows: how many changed rows bring autovacuum and autoanalyze.
        partitions: what the table is divided into, for --sql only; None: it is not
            divided.
    """
    runner = Runner(op, partitions=partitions)
    _alter(runner, table, schema=schema, fillfactor=fillfactor, dead_rows=dead_rows)


def reset_storage(
    op: Op, table: AnyTable, *, schema: str | None = None, partitions: Sequence[str] | None = None
) -> None:
    """Undo :func:`tune_storage`: the server's defaults again.

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
            "%s is divided into %d partitions, each with storage parameters of its own; those "
            "that are made later need them too",
            whole.description,
            len(parts),
        )
    for part in [whole] if parts is None else parts:
        runner.run(SetStorage(part, parameters, reset=reset))
