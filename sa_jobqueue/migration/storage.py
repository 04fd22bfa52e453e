"""Storage parameters for tables whose rows change several times and then rest."""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from ..dialects.ddl import SetStorage
from .running import Op, Runner
from .targets import AnyTable, name_of

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
) -> None:
    """Have PostgreSQL clean a queue's table up in time; nothing is done elsewhere.

    By default autovacuum waits until a fifth of the table is dead: in a table of
    ten million done rows, for two million dead ones, over which claims walk.

    Args:
        fillfactor: how full pages are made, in percent; for pages written from now on.
        dead_rows: how many changed rows bring autovacuum and autoanalyze.
    """
    _alter(op, table, schema=schema, fillfactor=fillfactor, dead_rows=dead_rows, reset=False)


def reset_storage(op: Op, table: AnyTable, *, schema: str | None = None) -> None:
    """Undo :func:`tune_storage`: the server's defaults again."""
    _alter(op, table, schema=schema, fillfactor=FILLFACTOR, dead_rows=DEAD_ROWS, reset=True)


def _alter(
    op: Op, table: AnyTable, *, schema: str | None, fillfactor: int, dead_rows: int, reset: bool
) -> None:
    runner = Runner(op)
    parameters = runner.database.storage_of_queue(fillfactor=fillfactor, dead_rows=dead_rows)
    if not parameters:
        return
    name, schema = name_of(table, schema)
    whole = Table(name, MetaData(), schema=schema)
    for part in runner.partitions_of(whole) or [whole]:
        runner.run(SetStorage(part, parameters, reset=reset))
