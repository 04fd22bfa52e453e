"""stats() and overview(): what they say of queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, literal_column, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, stats, utc_now
from sa_jobqueue.control import pause

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Count, QueueStats, overview
from sa_jobqueue.doctor import Severity, examine
from tests.models import Email, Render, add_renders
from tests.support import make_engine

from .models import Parcel, Pigeon, Postcard, add, boxes, parcels

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

HOUR = timedelta(hours=1)
FEW = timedelta(minutes=5)


def now() -> datetime:
    return datetime.now(UTC)


def test_an_empty_queue_has_nothing_to_tell(session: Session) -> None:
    nothing = Count(0)
    assert parcels.stats(session) == QueueStats(
        "sent_parcel", nothing, None, None, nothing, nothing, nothing, None, None, ()
    )


def test_the_jobs_of_a_queue_are_counted_apart(session: Session) -> None:
    ended = ("failed", "failed", "cancelled", "done")
    add(session, *(Parcel(status=status) for status in ended), Parcel(kind="tube"), Parcel())
    parcels.claim(session, owner="w")
    add(session, Parcel(), Parcel(kind="tube", status="failed"))

    seen, of_boxes = overview(session, [Parcel, boxes])

    assert (seen.due, seen.claimed) == (Count(2), Count(1))
    assert (seen.failed, seen.cancelled) == (Count(3), Count(1))
    assert (of_boxes.due, of_boxes.failed) == (Count(2), Count(2))


def test_the_oldest_and_the_next_are_those_of_all_priorities(session: Session) -> None:
    soon = (now() + HOUR).replace(microsecond=0)
    first = [Parcel(run_at=now() - 2 * HOUR, priority=5), Parcel(run_at=now() - HOUR, priority=1)]
    adopted = Parcel(run_at=datetime(1970, 1, 1, tzinfo=UTC))  # plain SQL left it, it tells no age
    add(session, *first, adopted, Parcel(run_at=soon + HOUR), Parcel(run_at=soon, priority=7))

    seen = parcels.stats(session)

    assert (seen.due, seen.next_due) == (Count(3), soon)
    assert seen.oldest is not None
    assert abs(seen.oldest - 2 * HOUR) < FEW


def test_without_a_schedule_the_insert_tells_the_age(session: Session, db_alias: str) -> None:
    add(session, Postcard(written=now() - HOUR), Postcard(), Pigeon(id=1, wing=1))
    add(session, Postcard(status="lost"))
    if db_alias == "postgresql":
        session.execute(text("SET LOCAL TIME ZONE 8"))

    seen, plain = overview(session, [Postcard, Pigeon])

    assert seen.oldest is not None
    assert abs(seen.oldest - HOUR) < FEW
    assert (seen.failed, plain.oldest) == (Count(1), None)


def test_a_job_that_its_owner_has_moved_on_counts_as_claimed(session: Session) -> None:
    first, _ = add_renders(session, 2)
    claim(session, Render, owner="w", limit=2)
    session.execute(update(Render).where(Render.id == first.id).values(status="running"))
    queue = JobQueue(Render)

    assert stats(session, Render).claimed == queue.stats(session).claimed == Count(2)
    assert queue.count_by_status(session)["running"] == 1


def test_without_an_index_failed_jobs_are_not_counted(session: Session, db_alias: str) -> None:
    add(session, Pigeon(id=1, wing=1, status="failed"))

    by_reap_index = db_alias in ("mysql", "mariadb")  # where it holds all rows
    expected = (Count(1), Count(0)) if by_reap_index else (None, None)
    assert (stats(session, Pigeon).failed, stats(session, Pigeon).cancelled) == expected


@pytest.mark.only_on("sqlite", "postgresql")
def test_an_index_that_is_declared_and_not_there_yet_is_not_counted_by(
    session: Session, engine: Engine
) -> None:
    indexes = Postcard.metadata.tables["postcard"].indexes
    (index,) = (index for index in indexes if "failed" in str(index.name))
    index.drop(engine)

    seen = stats(session, Postcard)
    session.rollback()
    (found,) = (each for each in examine(engine, Postcard).findings if each.check == "failed")
    index.create(engine)

    assert (seen.failed, found.severity) == (None, Severity.WARNING)
    assert "failed" not in [finding.check for finding in examine(engine, Postcard).findings]


def test_more_levels_than_are_looked_at_make_a_count_that_may_be_more(
    session: Session,
) -> None:
    add(session, *(Parcel(priority=n) for n in range(21)))

    assert parcels.stats(session).due == Count(20, more=True)


# -- the rate of finishes ---------------------------------------------------


def ago(session: Session, jobs: Sequence[Any], minutes: float) -> None:
    """Make finishes look older."""
    age = -(timedelta(minutes=minutes) // timedelta(microseconds=1))
    entity = type(jobs[0])
    older = update(entity).where(entity.id.in_([job.id for job in jobs]))
    session.execute(
        older.values(owner_date=utc_now(literal_column(str(age)))),
        execution_options={"synchronize_session": False},
    )
    session.commit()


def test_the_rate_counts_what_a_queue_completed_in_five_minutes(session: Session) -> None:
    cards, printed = JobQueue(Postcard), JobQueue(Parcel, then="printed")
    add(session, *(Postcard() for _ in range(6)), *(Parcel() for _ in range(3)))
    assert cards.stats(session).rate is None
    printed.complete(session, printed.claim(session, owner="w", limit=3))
    jobs = cards.claim(session, owner="w", limit=5)
    cards.complete(session, jobs[:4])
    cards.fail(session, jobs[4])
    ago(session, jobs[:1], minutes=6)

    assert cards.stats(session).rate == pytest.approx(3 / 300)
    assert printed.stats(session).rate == pytest.approx(3 / 300)
    assert JobQueue(Postcard, Postcard.id == 0).stats(session).rate is None
    assert parcels.stats(session).rate is None


# -- control tables -----------------------------------------------------------


def test_without_control_tables_nobody_is_asked(session: Session, fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    Parcel.metadata.create_all(engine, tables=[Parcel.__table__])  # type: ignore[list-item]  # a Table
    with Session(engine) as declared:
        found = [parcels.stats(declared), stats(session, Email)]
    engine.dispose()

    assert [(seen.paused, seen.workers) for seen in found] == [(None, None)] * 2


def test_a_session_that_knows_only_the_class_reads_the_control_tables(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        pause(session, Parcel)

    with Session(binds={Parcel: engine}) as session:
        session.add(Parcel())
        seen = parcels.stats(session)

    assert seen.due == Count(1)
    assert seen.paused is not None
