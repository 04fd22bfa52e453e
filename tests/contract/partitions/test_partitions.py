"""A table in partitions is a queue like any other, and a claim reads little of each partition."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, String, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    cancel,
    cancel_claimed,
    claim,
    claim_statements,
    complete,
    fail,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
)
from tests.contract.partitions.models import (
    DAYS,
    PARTITIONS,
    Base,
    Parcel,
    Report,
    add,
    ids,
    statuses,
)
from tests.contract.plans import analyze, fill, locked_rows, rows_read_of_tables
from tests.support import SERVERS, as_new, make_engine, statements_seen, with_empty_tables

pytestmark = [
    pytest.mark.only_on(*SERVERS),
    pytest.mark.xdist_group("partitions"),
    pytest.mark.timeout(240),
]
entities = pytest.mark.parametrize("entity", [Parcel, Report])


@pytest.fixture(scope="module")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables, for this file; to create partitions takes InnoDB seconds."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with empty tables in partitions."""
    return with_empty_tables(as_new(shared_engine), Base.metadata)


# The verbs


@entities
def test_a_claim_takes_the_first_of_all_partitions_in_order(
    session: Session, entity: Any, strategy: str
) -> None:
    there = add(session, entity, 40)

    first = claim(session, entity, owner="w", limit=20, strategy=strategy)
    complete(session, first)
    session.commit()

    assert ids(first) == there[:20]
    assert statuses(session, entity) == {
        **dict.fromkeys(there[:20], "done"),
        **dict.fromkeys(there[20:], "unclaimed"),
    }


@entities
def test_a_claim_leaves_rows_of_other_partitions_to_other_claims(
    session: Session, other: Session, entity: Any
) -> None:
    """A locking read looks at the head of each partition, and InnoDB keeps these rows locked."""
    there = add(session, entity, PARTITIONS)

    first = claim(session, entity, owner="1", limit=1)
    second = claim(other, entity, owner="2", limit=PARTITIONS)

    assert (ids(first), ids(second)) == (there[:1], there[1:])


#: What is done with claimed jobs, one after the other, and their status afterwards.
VERBS: list[tuple[list[Callable[[Session, Any], object]], str | None]] = [
    ([complete], "done"),
    ([lambda session, jobs: complete(session, jobs, delete=True)], None),
    ([lambda session, jobs: fail(session, jobs, error="no")], "failed"),
    ([cancel_claimed], "cancelled"),
    ([release], "unclaimed"),
    ([renew], "claimed"),
    ([lambda session, jobs: reap(session, Report, max_runtime=dt.timedelta(0))], "unclaimed"),
    ([complete, lambda session, jobs: prune(session, Report, older_than=dt.timedelta(0))], None),
    ([cancel_claimed, retry], "unclaimed"),
    ([release, cancel], "cancelled"),
]


@pytest.mark.parametrize(("verbs", "word"), VERBS)
def test_a_verb_reaches_its_jobs_in_every_partition_and_no_others(
    session: Session, verbs: Any, word: str | None
) -> None:
    there = add(session, Report, 16, max_attempts=1 if word == "failed" else 2)
    jobs = claim(session, Report, owner="w", limit=12)
    session.commit()

    for verb in verbs:
        verb(session, jobs)
    session.commit()

    found = statuses(session, Report)
    assert [found.get(key) for key in there] == [word] * 12 + ["unclaimed"] * 4


def test_new_priorities_and_strict_order_count_over_all_partitions(session: Session) -> None:
    there = add(session, Report, 16)
    later = session.scalars(select(Report).where(Report.id.in_(there[8:]))).all()
    reprioritize(session, later, -1)
    session.commit()
    queue = JobQueue(Report, strict_order=True)

    batches = [queue.claim(session, owner="w", limit=7) for _ in range(3)]

    assert [key for batch in batches for key in ids(batch)] == there[8:] + there[:8]


def test_statements_for_many_keys_of_several_columns_are_planned_fast(
    engine: Engine, session: Session
) -> None:
    """PostgreSQL's time to plan (a, b) IN (..) grows with the square of the number of keys."""
    there = add(session, Report, 450)
    jobs = claim(session, Report, owner="w", limit=450)
    session.commit()

    with statements_seen(engine) as seen:
        complete(session, jobs)
        session.commit()

    assert len([one for one in seen if one.startswith("UPDATE report")]) == 3
    assert statuses(session, Report) == dict.fromkeys(there, "done")


def test_a_key_that_a_claim_would_change_is_refused() -> None:
    """MySQL requires a key with the status where the status partitions the table."""

    class Base(DeclarativeBase):
        pass

    class Restless(JobMixin.named(status="status"), Base):  # type: ignore[misc]  # a call
        __tablename__ = "restless"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(String(16), primary_key=True)

    with pytest.raises(ArgumentError, match=r"'status', which a claim writes.*never changes"):
        claim_statements(Restless, dialect="mysql")


# What they read and lock

#: The rows of each table at least; one in a hundred is unclaimed.
MANY = 40_000


@pytest.fixture
def many(shared_engine: Engine) -> Iterator[Session]:
    """A session, rolled back at the end, on tables of 40,000 rows or more, 1 % unclaimed."""
    with Session(shared_engine) as session:
        if session.scalars(select(func.count()).select_from(Report)).one() < MANY:
            fill_tables(shared_engine)
        session.rollback()
        yield session


def fill_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(delete(table))
    status = "CASE WHEN number % 100 = 0 THEN 'unclaimed' ELSE 'done' END"
    # Not number % 8: all unclaimed rows would be in two partitions.
    days = " ".join(f"WHEN {n} THEN '{day}'" for n, day in enumerate(DAYS))
    day = f"CAST(CASE (number % 800 - number % 100) / 100 {days} END AS date)"
    fill(engine, f"INSERT INTO parcel (id, status) SELECT number, {status}", MANY)
    fill(engine, f"INSERT INTO report (id, day, status) SELECT number, {day}, {status}", MANY)
    for table in Base.metadata.sorted_tables:
        analyze(engine, table.name)


@pytest.mark.load
@pytest.mark.parametrize(("entity", "limit"), [(Parcel, 50), (Report, 1)])
def test_claim_and_finish_read_and_lock_what_they_take_and_the_head_of_each_partition(
    many: Session, entity: Any, strategy: str, limit: int
) -> None:
    connection = many.connection()
    before = rows_read_of_tables(connection)
    jobs = claim(many, entity, owner="w", limit=limit, strategy=strategy)
    claimed = rows_read_of_tables(connection)
    alias = connection.dialect.name
    locked = limit if alias == "postgresql" else locked_rows(connection, entity.__tablename__)
    finishing = rows_read_of_tables(connection)
    complete(many, jobs)
    read = claimed - before + rows_read_of_tables(connection) - finishing
    many.rollback()

    assert len(jobs) == limit
    # A finish reads each row twice; candidates draws four candidates for a row.
    assert limit <= read < 20 * limit + 10 * PARTITIONS, read
    extra = 0 if strategy == "candidates" else PARTITIONS
    # MariaDB counts a row once for each index that led to it.
    assert limit <= locked <= (2 if alias == "mariadb" else 1) * (limit + extra), locked
