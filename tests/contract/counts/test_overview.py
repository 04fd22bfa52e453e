"""stats() and overview(): what they say of queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, literal_column, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, stats, utc_now

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Count, QueueStats, overview
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
        "sent_parcel", nothing, None, None, nothing, nothing, nothing, 0.0, None, ()
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


def test_more_levels_than_are_looked_at_make_a_count_that_may_be_more(session: Session) -> None:
    add(session, *(Parcel(priority=n) for n in range(21)))

    assert parcels.stats(session).due == Count(20, more=True)


# -- behind a key ------------------------------------------------------------


def behind(session: Session, **limits: Any) -> tuple[int, int]:
    """Return how many parcels can be claimed, and how many wait behind others of their kind."""
    queue = JobQueue(Parcel, **limits)
    seen = queue.stats(session)
    claimable = queue.claim(session, owner="any", limit=50)
    session.rollback()
    assert seen.behind is not None
    assert seen.due.number == len(claimable)
    return seen.due.number, seen.behind.number


def test_jobs_behind_others_of_their_key_are_not_due(session: Session) -> None:
    later = now() + HOUR
    kinds = [*"aaabbb", "c"]
    add(session, *(Parcel(kind=kind, priority=n % 2) for n, kind in enumerate(kinds)))
    whole = behind(session, serial_by=Parcel.kind), behind(session, limit_by={Parcel.kind: 2})
    JobQueue(Parcel, Parcel.kind == "a").claim(session, owner="w")
    session.commit()
    busy = behind(session, serial_by=Parcel.kind), behind(session, limit_by={Parcel.kind: 2})
    add(session, Parcel(kind="b", attempts=1, run_at=later), Parcel(kind="c", run_at=later))

    retried = behind(session, serial_by=Parcel.kind)
    skipped = behind(session, limit_by={Parcel.kind: 1})

    assert whole == ((3, 4), (5, 2))
    assert busy == ((2, 4), (4, 2))
    assert (retried, skipped) == ((1, 5), (2, 4))
    assert parcels.stats(session).behind is None


def test_a_queue_whose_workers_died_with_its_keys_still_waits(session: Session) -> None:
    queue = JobQueue(Parcel, serial_by=Parcel.kind)
    add(session, Parcel(), Parcel())
    queue.claim(session, owner="w")

    seen = queue.stats(session)

    assert (seen.due, seen.behind, seen.waiting) == (Count(0), Count(1), Count(1))
    assert seen.worries == ["no worker"]


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
    assert cards.stats(session).rate == 0
    printed.complete(session, printed.claim(session, owner="w", limit=3))
    jobs = cards.claim(session, owner="w", limit=5)
    cards.complete(session, jobs[:4])
    cards.fail(session, jobs[4])
    ago(session, jobs[:1], minutes=6)

    assert cards.stats(session).rate == pytest.approx(3 / 300)
    assert printed.stats(session).rate == pytest.approx(3 / 300)
    assert JobQueue(Postcard, Postcard.id == 0).stats(session).rate == 0
    assert parcels.stats(session).rate == 0


# -- control tables -----------------------------------------------------------


def test_without_control_tables_nobody_is_asked(session: Session, fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    Parcel.metadata.create_all(engine, tables=[Parcel.__table__])  # type: ignore[list-item]  # a Table
    with Session(engine) as declared:
        found = [parcels.stats(declared), stats(session, Email)]
    engine.dispose()

    assert [(seen.paused, seen.workers) for seen in found] == [(None, None)] * 2
