"""A worker cancels jobs that nobody has claimed by their expires_at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, ExpiryMixin, JobMixin, JobQueue, RetryMixin, enqueue
from sa_jobqueue.events import listen
from tests.running import running, runs
from tests.support import SERVERS, until, with_empty_tables

HOUR = timedelta(hours=1)


class Base(DeclarativeBase):
    pass


class Offer(JobMixin, RetryMixin, ExpiryMixin, Base):
    __tablename__ = "offer"
    id: Mapped[int] = mapped_column(primary_key=True)


class Notice(JobMixin, ExpiryMixin, Base):
    """Without last_error."""

    __tablename__ = "notice"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
@pytest.mark.parametrize("entity", [Offer, Notice])
def test_a_job_that_nobody_has_claimed_in_time_is_cancelled(
    engine: Engine, session: Session, kind: str, entity: Any
) -> None:
    with_empty_tables(engine, Base.metadata)
    now = datetime.now(UTC)
    over, told = now - HOUR, list[str]()
    rows: list[dict[str, Any]] = [
        {"expires_at": over},
        {"expires_at": over, "status": "claimed", "owner": "w", "owner_date": now},
        {"expires_at": over, "status": "done"},
        {"expires_at": now + HOUR},
        {"expires_at": None},
    ]
    session.add_all(entity(id=number, **row) for number, row in enumerate(rows, start=1))
    session.commit()
    paused: JobQueue[Any] = JobQueue(entity, entity.id < 0)
    listen(paused, "after_cancel", lambda event: told.extend(str(job.key) for job in event.jobs))

    def found() -> list[Any]:
        session.rollback()
        return list(session.scalars(select(entity.status).order_by(entity.id)))

    with runs(kind, engine)({paused: lambda job: None}):
        until(lambda: told)

    assert found() == ["cancelled", "claimed", "done", "unclaimed", "unclaimed"]
    assert len(told) == 1
    if entity is Offer:
        error = session.get_one(Offer, 1).last_error
        assert error == "expired: nobody has claimed it by expires_at"


@pytest.mark.only_on(*SERVERS)
def test_a_job_that_a_held_claim_has_does_not_expire_and_holds_up_no_other(
    engine: Engine, session: Session, other: Session
) -> None:
    with_empty_tables(engine, Base.metadata)
    over = datetime.now(UTC) - HOUR
    session.add_all(Offer(id=number, expires_at=over) for number in (1, 2))
    session.commit()
    held = JobQueue(Offer, strategy="held")
    (first,) = held.claim(other, owner=None)

    def has_expired() -> bool:
        session.rollback()
        return session.get_one(Offer, 2).status == "cancelled"

    with running(engine, {JobQueue(Offer, Offer.id < 0): lambda job: None}):
        until(has_expired)
    held.complete(other, first)
    other.commit()
    session.rollback()

    assert session.get_one(Offer, 1).status == "done"


def test_a_time_without_a_zone_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match=r"expires_at=.* has no time zone"):
        enqueue(session, Offer, [{"expires_at": datetime(2030, 1, 1)}])
