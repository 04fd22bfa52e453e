"""Bulk loads beside one plain ``session.execute(insert(), rows)``, in turn.

Each way inserts the same rows into an empty table without further indexes, with its COMMITs; a
load has a log that is new each time.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

from sqlalchemy import Engine, MetaData, create_engine

from benchmarks.adapters.model import Base, Plain, payloads
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.inserts import Rows, Way, by_insert, by_session, compare_inserts
from benchmarks.harness.report import Figures, table
from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, Log, load_table
from sa_jobqueue.bulk.row_writer import Copy

if __name__ == "__main__":
    run_by_name(__spec__.name)

PLAIN = "session.execute(insert(), rows)"


def by_load(*, copy: bool = True, in_database: bool = False) -> Way:
    """Make a way to insert by a load with a log."""

    def load(engine: Engine, rows: Rows) -> None:
        with tempfile.TemporaryDirectory() as folder, nullcontext() if copy else WITHOUT_COPY:
            log: Log = DatabaseLog(engine) if in_database else FileLog(Path(folder))
            BulkLoad(InsertSource(engine, Plain, rows), log).run()

    return Way(Plain, load, PLAIN)


WAYS = {
    PLAIN: by_session(Plain, by_insert, PLAIN),
    "load, FileLog": by_load(),
    "load, DatabaseLog": by_load(in_database=True),
}

#: PostgreSQL alone has COPY, which a load uses where it can.
NO_COPY = {"load, FileLog, no COPY": by_load(copy=False)}
WITHOUT_COPY = mock.patch.object(Copy, "prepare", return_value=None)


def tables(figures: Figures) -> str:
    """Write a row for each way."""
    columns = (
        ("", "{way}"),
        ("rows/s", "{rate:,.0f}"),
        ("time by that of the plain insert", "{ratio:.2f}"),
    )
    return table(columns, figures["results"])


@benchmark(number("--rows", 200_000), number("--rounds", 9), tables=tables)
def main(database: Database, *, rows: int, rounds: int) -> Figures:
    """Insert rows in each way in turn, and compare with one plain insert."""
    ways = WAYS | (NO_COPY if database.name == "postgresql" else {})
    metadatas = (Base.metadata, load_table(MetaData()).metadata)
    make_rows = partial(payloads, rows)
    results = compare_inserts(create_engine(database.url), ways, metadatas, make_rows, rounds)
    return {"results": results}
