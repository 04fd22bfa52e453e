"""No count reads done rows, jobs that are due later, or more than it counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, complete, position

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Listed, count_failed, list_jobs, overview
from tests.contract.plans import analyze, assert_by_index, fill, plans, rows_read
from tests.support import make_engine

from .models import Base, Parcel, Postcard, boxes, keys_in_claim_order, parcels

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("counts")]

TABLES = ("sent_parcel", "postcard")

DONE, DUE, LATER = 20_000, 10_500, 20_000

#: With fewer jobs PostgreSQL's planner goes by index of its own accord.
MANY_DUE = 30_000

#: What an overview may read: 10,001 due jobs, which InnoDB writes to a derived table and reads
#: there again, and little else.
READ = 20_500


@pytest.fixture(scope="module")
def big(db_url: URL) -> Iterator[Engine]:
    """Two tables with many done rows, behind which jobs wait."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    many_due = MANY_DUE if engine.dialect.name == "postgresql" else DUE
    done = "CASE WHEN number % 10000 = 0 THEN 'failed' ELSE 'done' END, '2020-01-01 00:00:00'"
    parcel = "INSERT INTO sent_parcel (kind"
    fill(engine, f"{parcel}, status, owner_date) SELECT 'box', {done}", DONE)
    fill(engine, f"{parcel}, priority) SELECT 'box', number % 3", DUE)
    fill(engine, f"{parcel}, priority, run_at) SELECT 'box', -1, '2037-01-01 00:00:00'", LATER)
    fill(engine, f"INSERT INTO postcard (status, owner_date) SELECT {done}", DONE)
    fill(engine, "INSERT INTO postcard (status) SELECT 'unclaimed'", many_due)
    for table in TABLES:
        analyze(engine, table)
    yield engine
    # Dropped and made anew: to delete the rows took MySQL 3 seconds.
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


@pytest.mark.parametrize("queue", [parcels, boxes, Postcard], ids=["parcels", "boxes", "postcards"])
def test_an_overview_reads_no_done_rows(big: Engine, queue: Any) -> None:
    with Session(big) as session:
        complete(session, claim(session, Postcard, owner="w", limit=10))
        claim(session, Parcel, owner="w", limit=3)
        overview(session, [queue])  # asks for the indexes, once a minute
        before = rows_read(session.connection())

        (seen,) = overview(session, [queue])

        assert rows_read(session.connection()) - before < READ
        with plans(big, *TABLES) as steps:  # MySQL reads a table of one row to explain it
            overview(session, [queue])
        assert_by_index(big, steps, *TABLES)
        session.rollback()
    assert str(seen.due) == "10,000+"


def test_failed_jobs_are_listed_by_their_index(big: Engine) -> None:
    with Session(big) as session:
        list_jobs(session, Parcel, Listed.FAILED, limit=1)
        before = rows_read(session.connection())

        with plans(big, *TABLES) as steps:
            (newest,) = list_jobs(session, Parcel, Listed.FAILED, limit=1)
            list_jobs(session, Parcel, Listed.FAILED, limit=2, after=newest)
            list_jobs(session, Parcel, Listed.FAILED, limit=2, until=newest.owner_date)
            count_failed(session, Parcel, until=datetime(1970, 1, 1, tzinfo=UTC))

        assert rows_read(session.connection()) - before < 50
        assert_by_index(big, steps, *TABLES)


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("queue", [parcels, JobQueue(Postcard)], ids=["parcels", "postcards"])
def test_a_position_reads_the_jobs_before_it_alone(
    big: Engine, queue: JobQueue[Any], autocommit: bool
) -> None:
    engine = big.execution_options(isolation_level="AUTOCOMMIT") if autocommit else big
    with Session(big) as session:
        keys = keys_in_claim_order(session, queue)
    with Session(engine) as session:
        job = session.get_one(queue.entity, keys[19])
        before = rows_read(session.connection())

        with plans(big, *TABLES) as steps:
            place = position(session, job)

        assert place == 20
        assert rows_read(session.connection()) - before < 150
        assert not [step for step in steps if "SCAN" in step and "CONSTANT ROW" not in step], steps


def test_a_job_due_later_has_no_position_and_is_not_walked_over(big: Engine) -> None:
    with Session(big) as session:
        later = session.query(Parcel).filter_by(priority=-1).limit(1).one()
        behind = session.query(Parcel).filter_by(status="unclaimed", priority=1)
        job = behind.order_by(Parcel.run_at, Parcel.id).limit(1).one()
        sooner = session.query(Parcel).filter_by(status="unclaimed", priority=0).count()
        before = rows_read(session.connection())

        places = [position(session, later), position(session, job)]

        assert places == [None, sooner + 1]
        assert rows_read(session.connection()) - before < sooner + 200


@pytest.mark.only_on("postgresql")
def test_settings_of_the_session_are_as_before(big: Engine) -> None:
    names = ("enable_seqscan", "enable_bitmapscan", "enable_indexscan")
    with Session(big) as session:
        session.execute(text("SET LOCAL enable_indexscan = off"))

        overview(session, [parcels])
        position(session, session.query(Parcel).limit(1).one())

        now = [session.execute(text(f"SHOW {name}")).scalar_one() for name in names]
    assert now == ["on", "on", "off"]


@pytest.mark.only_on("postgresql")
def test_a_few_due_jobs_among_many_rows_are_read_in_index_order(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    done = "INSERT INTO sent_parcel (kind, status, owner_date) SELECT 'box', 'done', now()"
    fill(engine, done, DONE)
    fill(engine, "INSERT INTO sent_parcel (kind) SELECT 'box'", 500)
    analyze(engine, "sent_parcel")

    with Session(engine) as session, plans(engine, "sent_parcel") as steps:
        list_jobs(session, Parcel, Listed.DUE, limit=50)
        overview(session, [Parcel])
        found = set(steps)
        steps.clear()
        list_jobs(session, JobQueue(Parcel, order_by=Parcel.id), Listed.DUE, limit=50)

    assert "Index Scan sent_parcel ix_sent_parcel_finish" not in found  # and then a sort
    assert steps
    assert not [step for step in steps if "pkey" in step], steps
    engine.dispose()
