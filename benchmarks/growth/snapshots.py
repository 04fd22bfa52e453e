"""An old snapshot: a transaction that has read once, and stays open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from sqlalchemy import NullPool, create_engine, select

from benchmarks.adapters.catalogue import SQLITE
from benchmarks.adapters.model import Job


def snapshot_if(wanted: bool, engine: str, url: str) -> AbstractContextManager[None]:
    """Keep an old snapshot open, or do not."""
    return old_snapshot(engine, url) if wanted else nullcontext()


@contextmanager
def old_snapshot(engine: str, url: str) -> Iterator[None]:
    """Keep a snapshot open on a connection of its own."""
    # The driver of SQLite begins no transaction for a read; we say BEGIN ourselves.
    level = "AUTOCOMMIT" if engine == SQLITE else "REPEATABLE READ"
    to = create_engine(url, isolation_level=level, poolclass=NullPool)
    with to.connect() as connection:
        if engine == SQLITE:
            connection.exec_driver_sql("BEGIN")
        connection.execute(select(Job.id).limit(1)).all()
        yield
        if engine == SQLITE:
            connection.exec_driver_sql("ROLLBACK")
