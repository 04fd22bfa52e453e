"""Jobs are counted by status, and stats tell depth, age and owners."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import DateTime, Engine, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, claim, claimed_by, release, stats
from tests.models import Email, Render, Task, add_emails, add_renders
from tests.support import with_empty_tables


def test_a_job_that_its_owner_has_moved_on_counts_as_claimed_and_is_the_owners(
    session: Session,
) -> None:
    first, _ = add_renders(session, 2)
    claim(session, Render, owner="w", limit=2)
    session.execute(update(Render).where(Render.id == first.id).values(status="running"))
    queue = JobQueue(Render)

    assert stats(session, Render).claimed == queue.stats(session).claimed == {"w": 2}
    assert queue.count_by_status(session)["running"] == 1
    assert len(claimed_by(session, Render, "w")) == len(queue.claimed_by(session, "w")) == 2
    release(session, claimed_by(session, Render, "w"))
    assert stats(session, Render).depth == 2


def test_the_waiting_age_of_a_row_by_plain_sql_is_known(session: Session) -> None:
    session.execute(text("INSERT INTO task (name) VALUES ('plain')"))

    waiting = stats(session, Task).oldest_waiting

    assert waiting is not None
    assert timedelta(0) <= waiting < timedelta(minutes=1)


def test_the_waiting_age_is_none_where_nothing_tells_it(session: Session) -> None:
    add_emails(session, "a")
    session.execute(  # as a row that was there before the column
        text("INSERT INTO task (name, run_at) VALUES ('adopted', '1970-01-01 00:00:00')")
    )

    assert stats(session, Email).oldest_waiting is None
    assert stats(session, Task).oldest_waiting is None
    assert stats(session, Task).depth == 1


class NaiveBase(DeclarativeBase):
    pass


class Parcel(JobMixin, NaiveBase):
    __tablename__ = "naive_parcel"
    __queue_args__ = {"enqueued_at": "created"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[datetime] = mapped_column(DateTime())


@pytest.mark.parametrize("hours", [-8, 8])
def test_the_waiting_age_of_a_time_without_a_zone_does_not_go_by_the_sessions_zone(
    engine: Engine, db_alias: str, hours: int
) -> None:
    hour_ago = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1)
    with Session(with_empty_tables(engine, NaiveBase.metadata)) as session:
        session.add(Parcel(created=hour_ago))
        session.commit()
        if db_alias == "postgresql":
            session.execute(text(f"SET LOCAL TIME ZONE {hours}"))

        waiting = stats(session, Parcel).oldest_waiting

        assert waiting is not None
        assert timedelta(minutes=59) < waiting < timedelta(minutes=61)
