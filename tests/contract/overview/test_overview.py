"""overview(): what it says of queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, JobStatus, Owner, claim, complete
from sa_jobqueue.control import pause, register_worker
from sa_jobqueue.overview import Count, QueueOverview, count, overview, waiting
from tests.models import Account, Email
from tests.support import make_engine

from .models import TABLES, Parcel, Pigeon, Postcard, Stamp, boxes, parcels

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


def of(session: Session, queue: Any) -> QueueOverview:
    (seen,) = overview(session, [queue])
    return seen


def add(session: Session, *jobs: Any) -> None:
    session.add_all(jobs)
    session.commit()


def test_an_empty_queue_has_nothing_to_tell(session: Session) -> None:
    seen = of(session, parcels)

    nothing = Count(0)
    assert seen == QueueOverview(
        "sent_parcel", nothing, None, None, nothing, nothing, nothing, None, None, ()
    )


def test_due_jobs_are_counted_and_the_oldest_tells_its_age(session: Session) -> None:
    add(
        session,
        Parcel(run_at=now() - 2 * HOUR, priority=5),
        Parcel(run_at=now() - HOUR, priority=1),
        Parcel(run_at=now() + HOUR, priority=0),
    )

    seen = of(session, parcels)

    assert seen.due == Count(2)
    assert seen.oldest is not None
    assert abs(seen.oldest - 2 * HOUR) < timedelta(minutes=5)


def test_the_next_due_time_is_the_soonest_of_all_priorities(session: Session) -> None:
    soon = (now() + HOUR).replace(microsecond=0)
    add(session, Parcel(run_at=now() + 2 * HOUR, priority=0), Parcel(run_at=soon, priority=7))

    seen = of(session, parcels)

    assert (seen.due, seen.oldest, seen.next_due) == (Count(0), None, soon)


def test_a_time_that_plain_sql_left_is_no_age(session: Session) -> None:
    add(session, Parcel(run_at=datetime(1970, 1, 1, tzinfo=UTC)))

    assert (of(session, parcels).due, of(session, parcels).oldest) == (Count(1), None)


def test_without_a_schedule_the_insert_tells_the_age(session: Session) -> None:
    add(session, Postcard(written=now() - HOUR), Postcard())

    seen = of(session, Postcard)

    assert seen.oldest is not None
    assert abs(seen.oldest - HOUR) < timedelta(minutes=5)
    assert of(session, Pigeon).oldest is None


def test_only_jobs_that_fulfil_the_criteria_count(session: Session) -> None:
    failed = JobStatus.FAILED
    add(session, Parcel(), Parcel(kind="tube"), Parcel(kind="tube", status=failed))

    assert (of(session, boxes).due, of(session, boxes).failed) == (Count(1), Count(0))
    assert (of(session, parcels).due, of(session, parcels).failed) == (Count(2), Count(1))


def test_claimed_failed_and_cancelled_jobs_are_counted_apart(session: Session) -> None:
    add(session, *(Parcel(status=s) for s in ("failed", "failed", "cancelled", "done")), Parcel())
    claim(session, Parcel, owner="w")

    seen = of(session, parcels)

    assert (seen.due, seen.claimed) == (Count(0), Count(1))
    assert (seen.failed, seen.cancelled) == (Count(2), Count(1))


def test_failed_jobs_are_counted_in_the_words_of_the_table(session: Session) -> None:
    add(session, Postcard(status="lost"))

    assert of(session, Postcard).failed == Count(1)


@pytest.mark.only_on("mysql", "mariadb")
def test_a_reap_index_of_all_rows_finds_failed_jobs_too(session: Session) -> None:
    add(session, Pigeon(id=1, wing=1, status="failed"))

    assert (of(session, Pigeon).failed, of(session, Pigeon).cancelled) == (Count(1), Count(0))


@pytest.mark.only_on("sqlite", "postgresql")
def test_without_an_index_failed_jobs_are_not_counted(session: Session) -> None:
    add(session, Pigeon(id=1, wing=1, status="failed"))

    assert (of(session, Pigeon).failed, of(session, Pigeon).cancelled) == (None, None)


@pytest.mark.only_on("sqlite", "postgresql")
def test_an_index_that_is_declared_and_not_there_yet_is_not_counted_by(
    session: Session, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_stamp_failed"))
    try:
        assert of(session, Stamp).failed is None
    finally:
        session.rollback()
        index = next(i for i in Stamp.__table__.indexes if i.name == "ix_stamp_failed")  # type: ignore[attr-defined]  # it is a Table
        index.create(engine)


def test_counts_end_at_a_limit(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "MOST", 2)
    monkeypatch.setattr(waiting, "MOST", 2)
    add(session, *(Parcel(priority=n) for n in range(4)))
    add(session, *(Parcel(status="failed") for _ in range(2)))

    seen = of(session, parcels)

    assert (seen.due, seen.failed) == (Count(2, more=True), Count(2))
    assert (str(seen.due), str(seen.failed), str(Count(10_000, more=True))) == (
        "2+",
        "2",
        "10,000+",
    )


def test_more_levels_than_are_looked_at_make_a_count_that_may_be_more(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LEVELS", 2)
    add(session, *(Parcel(priority=n) for n in range(3)))

    assert of(session, parcels).due == Count(2, more=True)


def test_the_rate_is_that_of_the_last_minutes(session: Session) -> None:
    add(session, *(Parcel() for _ in range(3)))
    complete(session, claim(session, Parcel, owner="w", limit=3))
    session.commit()

    assert of(session, parcels).rate == pytest.approx(3 / 300)


def test_pauses_and_workers_come_from_the_control_tables(session: Session) -> None:
    with Owner(session.get_bind(), "postman") as owner:  # type: ignore[arg-type]  # an Engine
        pause(session, Parcel)
        register_worker(session, owner.name, [Parcel], tables=TABLES)
        session.commit()
        name = owner.name

        first, second = overview(session, [parcels, Pigeon])

    assert first.paused is not None
    assert first.workers is not None
    assert [worker.name for worker in first.workers] == [name]
    assert (second.paused, second.workers) == (None, ())


def test_control_tables_that_are_not_there_yet_tell_nothing(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    Parcel.metadata.create_all(engine, tables=[Parcel.__table__])  # type: ignore[list-item]  # a Table

    with Session(engine) as session:
        seen = of(session, parcels)

    engine.dispose()
    assert (seen.paused, seen.workers) == (None, None)


def test_a_session_that_knows_only_the_class_reads_the_control_tables(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        pause(session, Parcel)

    with Session(binds={Parcel: engine}) as session:
        session.add(Parcel())
        seen = of(session, parcels)
        session.commit()
        again = of(session, parcels)

    assert (seen.due, again.due) == (Count(1), Count(1))
    assert seen.paused is not None


def test_without_control_tables_nobody_is_asked(session: Session) -> None:
    Email.metadata.create_all(session.connection())

    assert (of(session, Email).paused, of(session, Email).workers) == (None, None)


def test_what_is_no_queue_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="JobMixin"):
        overview(session, [JobQueue(Pigeon), Account])
