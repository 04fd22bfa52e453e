"""What claims and finishes read and lock in each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete
from tests.contract.partitions.support import DAYS, ENTITIES, Base, Report
from tests.contract.plans import analyze, fill, rows_read_of_tables
from tests.innodb_locks import locked_rows
from tests.support import SERVERS

PARTITIONS = 8

pytestmark = [
    pytest.mark.load,
    pytest.mark.xdist_group("partitions"),
    pytest.mark.timeout(240),
]

entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)

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


@servers
@entities
@pytest.mark.parametrize("limit", [1, 50])
def test_claim_and_finish_read_what_they_take_and_the_head_of_each_partition(
    many: Session, entity: Any, strategy: str, limit: int
) -> None:
    connection = many.connection()
    before = rows_read_of_tables(connection)
    jobs = claim(many, entity, owner="w", limit=limit, strategy=strategy)
    complete(many, jobs)
    read = rows_read_of_tables(connection) - before
    many.rollback()

    assert len(jobs) == limit
    # A finish reads each row twice; candidates draws four candidates for a row.
    assert limit <= read < 20 * limit + 10 * PARTITIONS, read


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("skip_locked", "held", "candidates", "update_then_select")
@entities
@pytest.mark.parametrize("limit", [1, 50])
def test_innodb_locks_the_head_of_each_partition_at_most(
    many: Session, entity: Any, strategy: str, limit: int
) -> None:
    jobs = claim(many, entity, owner="w", limit=limit, strategy=strategy)

    locked = locked_rows(many.connection(), entity.__tablename__)

    assert len(jobs) == limit
    extra = 0 if strategy == "candidates" else PARTITIONS
    # MariaDB counts a row once for each index that led to it.
    each = 1 if many.get_bind().dialect.name == "mysql" else 2
    assert limit <= locked <= each * (limit + extra), locked
