"""The tables: the jobs that hand-written SQL and sa_jobqueue share, and rows without the mixin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, String, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from benchmarks.adapters.adapter import prepare_sqlite
from sa_jobqueue import JobMixin


class Base(DeclarativeBase):
    """The benchmarks' tables."""


class Numbered:
    """The columns that all tables have; the primary key is the job's number."""

    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[str] = mapped_column(String(100))


class Job(Numbered, JobMixin, Base):
    """A job with a payload."""

    __tablename__ = "bench_job"


class Plain(Numbered, Base):
    """The same table without the mixin: shows what an insert costs by itself."""

    __tablename__ = "bench_plain"


def make_engine(url: str, **options: Any) -> Engine:
    """Create an engine; SQLite in WAL mode, with time to wait for other writers."""
    if not url.startswith("sqlite"):
        level = {} if url.startswith("postgresql") else {"isolation_level": "READ COMMITTED"}
        return create_engine(url, **level, **options)
    engine = create_engine(url, connect_args={"timeout": 60}, **options)
    event.listen(engine, "connect", lambda driver, _: prepare_sqlite(driver))
    return engine


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a transaction on a connection that is not kept."""
    engine = make_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def payloads(jobs: int) -> list[dict[str, object]]:
    """Make the rows of `jobs` jobs."""
    return [{"id": number, "payload": f"payload {number}"} for number in range(1, jobs + 1)]
