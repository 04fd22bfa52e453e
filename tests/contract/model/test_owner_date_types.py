"""A type of the user's own for owner_date keeps the fence whole, or is refused at the claim."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import DateTime, Engine, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim, complete, renew
from sa_jobqueue.migration import timestamp_type
from tests.support import make_engine


class Utc(TypeDecorator[datetime]):
    """Store UTC, as many projects do."""

    impl: Any = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class PreciseUtc(Utc):
    impl: Any = timestamp_type()
    cache_ok = True


class Seconds(PreciseUtc):
    """Drop what is less than a second."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC, microsecond=0)


def queue_with(type_: TypeEngine[Any]) -> Any:
    """Map a queue whose owner_date has this type."""

    class Base(DeclarativeBase):
        metadata = MetaData()

    class Dated(JobMixin, Base):
        __tablename__ = "owner_date_type"
        id: Mapped[int] = mapped_column(primary_key=True)
        owner_date = mapped_column("taken_at", type_, nullable=True)

    return Dated


@pytest.fixture
def session_of(db_url: Any) -> Any:
    """Open a session on the table of a class, which is dropped at the end."""
    engine: Engine = make_engine(db_url)
    opened: list[Any] = []

    def open_session(cls: Any) -> Session:
        cls.metadata.drop_all(engine)
        cls.metadata.create_all(engine)
        session = Session(engine)
        opened.append((cls, session))
        session.add_all([cls(), cls()])
        session.commit()
        return session

    yield open_session
    for cls, session in opened:
        session.close()
        cls.metadata.drop_all(engine)
    engine.dispose()


@pytest.mark.parametrize("type_", [Utc(), PreciseUtc()], ids=["Utc", "PreciseUtc"])
def test_a_type_of_ones_own_is_claimed_renewed_and_finished_or_refused(
    session_of: Any, db_alias: str, type_: TypeEngine[Any]
) -> None:
    cls = queue_with(type_)
    session = session_of(cls)
    if db_alias in ("mysql", "mariadb") and type(type_) is Utc:
        with pytest.raises(ArgumentError, match=r"owner_date loses microseconds.*DATETIME keeps 0"):
            claim(session, cls, owner="w", limit=2)
        return

    jobs = claim(session, cls, owner="w", limit=2)
    session.commit()
    renew(session, jobs)
    complete(session, jobs)
    session.commit()

    assert [job.status for job in jobs] == ["done"] * 2


def test_a_type_that_drops_microseconds_is_refused(session_of: Any) -> None:
    cls = queue_with(Seconds())
    session = session_of(cls)

    with pytest.raises(ArgumentError, match="owner_date loses microseconds"):
        JobQueue(cls).claim_rows(session, owner="w", limit=2)
