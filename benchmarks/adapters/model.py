"""The table that hand-written SQL and sa_jobqueue share."""

from __future__ import annotations

from sqlalchemy import Engine, String, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin


class Base(DeclarativeBase):
    """The benchmark's tables."""


class Job(JobMixin, Base):
    """A job with a payload; its primary key is its number."""

    __tablename__ = "bench_job"

    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[str] = mapped_column(String(100))


class Plain(Base):
    """The same table without the mixin, for the price of an insert."""

    __tablename__ = "bench_plain"

    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[str] = mapped_column(String(100))


def make_engine(url: str) -> Engine:
    """Create an engine; SQLite in WAL mode, with time to wait for other writers."""
    if not url.startswith("sqlite"):
        level = {} if url.startswith("postgresql") else {"isolation_level": "READ COMMITTED"}
        return create_engine(url, **level)
    engine = create_engine(url, connect_args={"timeout": 60})
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA journal_mode=WAL"))
    return engine


def payloads(jobs: int) -> list[dict[str, object]]:
    """Make the rows of `jobs` jobs."""
    return [{"id": number, "payload": f"payload {number}"} for number in range(1, jobs + 1)]
