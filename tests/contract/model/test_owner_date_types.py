"""A type of the user's own for owner_date keeps the fence whole, or is refused at the claim."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import URL, DateTime, MetaData
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


@pytest.mark.parametrize("type_", [Utc(), PreciseUtc(), Seconds()], ids=lambda t: type(t).__name__)
def test_a_type_of_ones_own_is_claimed_renewed_and_finished_or_refused(
    db_url: URL, db_alias: str, type_: TypeEngine[Any]
) -> None:
    engine, cls = make_engine(db_url), queue_with(type_)
    cls.metadata.drop_all(engine)
    cls.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([cls(), cls()])
        session.commit()
        if type(type_) is Seconds or (type(type_) is Utc and db_alias in ("mysql", "mariadb")):
            for take in (JobQueue(cls).claim, JobQueue(cls).claim_rows):
                with pytest.raises(ArgumentError, match="owner_date loses microseconds"):
                    take(session, owner="w", limit=2)
        else:
            jobs = claim(session, cls, owner="w", limit=2)
            session.commit()
            renew(session, jobs)
            complete(session, jobs)
            session.commit()
            assert [job.status for job in jobs] == ["done"] * 2
    cls.metadata.drop_all(engine)
    engine.dispose()
