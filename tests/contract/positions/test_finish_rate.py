"""How many jobs were finished lately, and how long a position takes at that rate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Index, String, event, func, literal_column, select, text, update
from sqlalchemy.orm import Mapped, ORMExecuteState, Session, mapped_column, with_loader_criteria

from sa_jobqueue import (
    ArgumentError,
    Claim,
    JobMixin,
    JobQueue,
    cancel,
    cancel_claimed,
    claim,
    complete,
    fail,
    finish_rate,
    position,
    utc_now,
    waiting_time,
)
from tests.contract.positions.support import Base, Print
from tests.models import Email, Message, add_emails
from tests.support import Sessions

HOUR = timedelta(hours=1)


class Fax(JobMixin, Base):
    """A queue with an index of its done rows only."""

    __tablename__ = "fax"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), default="a")


class Memo(JobMixin, Base):
    """A queue with an index that has nothing to do with the time of a finish."""

    __tablename__ = "memo"
    __table_args__ = (Index("ix_memo_status", "status", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)


Index(
    "ix_fax_done",
    Fax.__table__.c.owner_date,
    postgresql_where=text("status = 'done'"),
    sqlite_where=text("status = 'done'"),
)


NO_SYNC = {"synchronize_session": False}


def prints(session: Session, number: int) -> Claim[Print]:
    """Commit prints, and claim them."""
    session.add_all(Print() for _ in range(number))
    session.commit()
    return claim(session, Print, owner="w", limit=number)


def ago(session: Session, jobs: Sequence[Any], **time: float) -> None:
    """Make finishes look older."""
    age = -(timedelta(**time) // timedelta(microseconds=1))
    entity = type(jobs[0])
    session.execute(
        update(entity)
        .where(entity.id.in_([job.id for job in jobs]))
        .values(owner_date=utc_now(literal_column(str(age)))),
        execution_options=NO_SYNC,
    )
    session.commit()


def test_the_rate_counts_the_finishes_in_the_window(mine: Session) -> None:
    jobs = prints(mine, 20)
    complete(mine, jobs[:12])
    fail(mine, jobs[12:15])
    cancel_claimed(mine, jobs[15:16])
    waiting = [Print(), Print()]
    mine.add_all(waiting)
    mine.flush()
    cancel(mine, waiting[0])  # ended, but nobody worked on it
    ago(mine, jobs[:2], minutes=6)

    assert finish_rate(mine, Print) == pytest.approx(14 / 300)
    assert finish_rate(mine, Print, over=timedelta(minutes=7)) == pytest.approx(16 / 420)
    assert waiting_time(mine, waiting[1]) == timedelta(seconds=1 / (14 / 300))
    assert waiting_time(mine, waiting[0]) is None


def test_a_queue_counts_what_it_completes(mine: Session) -> None:
    queue = JobQueue(Print, then="printed")
    queue.complete(mine, prints(mine, 3))

    assert queue.finish_rate(mine) == pytest.approx(3 / 300)
    assert finish_rate(mine, Print) is None


def test_the_expected_time_is_the_position_divided_by_the_rate(mine: Session) -> None:
    complete(mine, prints(mine, 30))
    jobs = [Print(priority=-number) for number in range(10)]
    mine.add_all(jobs)
    mine.flush()
    queue = JobQueue(Print)

    assert queue.position(mine, jobs[0]) == 10
    assert queue.waiting_time(mine, jobs[0]) == timedelta(seconds=100)
    assert queue.waiting_time(mine, jobs[0], over=2 * HOUR) == timedelta(hours=2) / 3


def test_without_recent_finishes_there_is_no_rate(mine: Session) -> None:
    jobs = prints(mine, 3)
    assert finish_rate(mine, Print) is None
    complete(mine, jobs[:2])
    ago(mine, jobs[:2], minutes=10)
    job = Print()
    mine.add(job)
    mine.flush()

    assert finish_rate(mine, Print) is None
    assert waiting_time(mine, job) is None
    with pytest.raises(ArgumentError, match="longer than 0"):
        finish_rate(mine, Print, over=timedelta(0))


def test_queues_that_delete_their_jobs_have_no_rate(session: Session) -> None:
    session.add_all([Message(sequence=1), Message(sequence=2)])
    session.commit()
    complete(session, claim(session, Message, owner="w"))
    (job,) = session.scalars(select(Message))

    assert (finish_rate(session, Message), waiting_time(session, job)) == (None, None)
    assert position(session, job) == 1


def test_the_rate_of_very_many_finishes_is_measured_by_the_latest_of_them(
    mine: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.queue_position.finish_rate.MOST_FINISHES", 10)
    jobs = prints(mine, 20)
    complete(mine, jobs)
    for number, job in enumerate(jobs):
        ago(mine, [job], seconds=10 * (number + 1))

    rate = finish_rate(mine, Print)

    assert rate is not None
    assert 10 / 110 < rate < 10 / 99


@pytest.mark.only_on("postgresql", "sqlite")
def test_without_an_index_the_rate_is_refused_with_the_way_out(session: Session) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match=r'Index\("ix_email_finish", "status", "owner_date"\)'):
        finish_rate(session, Email)
    with pytest.raises(ArgumentError, match="no index finds"):
        waiting_time(session, email)


@pytest.mark.only_on("postgresql", "sqlite")
def test_an_index_of_the_status_alone_is_no_index_of_finishes(mine: Session) -> None:
    with pytest.raises(ArgumentError, match="ix_memo_finish"):
        finish_rate(mine, Memo)


@pytest.mark.only_on("mysql", "mariadb")
def test_the_index_of_reapers_finds_the_finishes(session: Session) -> None:
    add_emails(session, "a", "b")
    complete(session, claim(session, Email, owner="w"))

    assert finish_rate(session, Email) == pytest.approx(1 / 300)


def test_the_rate_uses_a_partial_index_of_done_rows(mine: Session, db_alias: str) -> None:
    mine.add_all(Fax() for _ in range(6))
    mine.commit()
    jobs = claim(mine, Fax, owner="w", limit=5)
    complete(mine, jobs[:4])
    fail(mine, jobs[4])

    failed = db_alias in ("mysql", "mariadb")  # the reap index holds their dates
    assert finish_rate(mine, Fax) == pytest.approx((4 + failed) / 300)


def test_a_queue_counts_its_own_finishes(mine: Session, new_session: Sessions) -> None:
    mine.add_all(Fax(kind=kind) for kind in "aabbb")
    mine.commit()
    complete(mine, claim(mine, Fax, owner="w", limit=5), then="sent")
    mine.commit()
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        state.statement = state.statement.options(with_loader_criteria(Fax, Fax.kind == "a"))

    mine.execute(update(Fax).where(Fax.id == mine.scalar(func.max(Fax.id))).values(status="done"))
    mine.execute(update(Fax).where(Fax.status == "sent").values(status="done"))
    mine.commit()
    of_b = JobQueue(Fax, Fax.kind == "b")
    assert of_b.finish_rate(mine) == pytest.approx(3 / 300)
    assert JobQueue(Fax).finish_rate(tenant) == pytest.approx(2 / 300)
