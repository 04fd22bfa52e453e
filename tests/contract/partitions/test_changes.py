"""Partitions come and go, and rows move from one to another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    claim,
    claim_statements,
    complete,
    is_transient,
)
from sa_jobqueue.migration import (
    timestamp_type,
)
from tests.contract.partitions.support import (
    ENTITIES,
    FIRST_DAY,
    Base,
    Moving,
    Report,
    add,
    ids,
    statuses,
)
from tests.support import SERVERS, Sessions, make_engine, statements_seen

PARTITIONS = 8

pytestmark = [pytest.mark.xdist_group("partitions"), pytest.mark.timeout(240)]

entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)


# -- partitions that come and go -------------------------------------------------


@servers
def test_a_partition_of_done_rows_is_dropped_and_claims_go_on(
    fresh_database: URL, db_alias: str
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        there = add(session, Report, 24)
        first_day = Report.day == FIRST_DAY
        complete(session, claim(session, Report, first_day, owner="w", limit=24))
        session.commit()
        drop = {"postgresql": "DROP TABLE report_0"}.get(
            db_alias, "ALTER TABLE report DROP PARTITION d0"
        )
        session.execute(text(drop))
        session.commit()

        jobs = claim(session, Report, owner="w", limit=24)

        assert ids(jobs) == [key for key in there if key % PARTITIONS]
    engine.dispose()


# -- tables that are there already -----------------------------------------------


# -- rows that move --------------------------------------------------------------


@pytest.fixture
def moving(engine: Engine) -> Iterator[None]:
    Moving.__table__.create(engine)
    yield
    Moving.__table__.drop(engine)


#: Waits until the lock is released, after the statement has seen what it will claim.
GATE = literal_column("(SELECT 1 FROM pg_advisory_xact_lock_shared(4242))", Integer) == 1


def claimed_behind_its_back(new_session: Sessions, entity: Any) -> Callable[[], list[int]]:
    """Have a claim see the first row, which somebody else claims before it is locked."""
    session, other, gate = new_session(), new_session(), new_session()
    gate.execute(select(func.pg_advisory_lock(4242)))
    result: list[Any] = []

    def late() -> None:
        try:
            result.append(ids(claim(session, entity, GATE, owner="late", limit=1)))
        except DBAPIError as error:
            result.append(error)
        session.rollback()

    thread = threading.Thread(target=late)
    thread.start()
    waiting = text(  # at this gate: other tests wait for other locks
        "SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid "
        "WHERE locktype = 'advisory' AND NOT granted AND objid = 4242 "
        "AND datname = current_database()"
    )
    while not gate.execute(waiting).first():
        assert thread.is_alive()
    claim(other, entity, owner="early", limit=1)
    other.commit()
    gate.execute(select(func.pg_advisory_unlock(4242)))
    thread.join(30)

    def outcome() -> list[int]:
        (found,) = result
        if isinstance(found, DBAPIError):
            raise found
        return list(found)

    return outcome


@pytest.mark.only_on("postgresql")
@entities
def test_a_row_that_was_claimed_meanwhile_is_skipped(
    session: Session, new_session: Sessions, entity: Any
) -> None:
    there = add(session, entity, 20)

    outcome = claimed_behind_its_back(new_session, entity)

    assert outcome() == there[1:2]


@pytest.mark.only_on("postgresql")
@pytest.mark.usefixtures("moving")
def test_a_row_that_moved_to_another_partition_meanwhile_is_a_transient_error(
    session: Session, new_session: Sessions
) -> None:
    """Nobody gets the row twice, but the claim fails; so partition by columns that never change."""
    there = add(session, Moving, 20)

    outcome = claimed_behind_its_back(new_session, Moving)

    with pytest.raises(DBAPIError, match="moved to another partition") as moved:
        outcome()
    assert is_transient(moved.value)
    assert ids(claim(session, Moving, owner="w", limit=20)) == there[1:]


class Restless(JobMixin, Base):
    """A key with the status, which MySQL requires where the status partitions the table."""

    __table__ = Table(
        "restless",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("status", String(16), primary_key=True, server_default="unclaimed"),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
    )


@pytest.mark.parametrize("dialect", ["sqlite", *SERVERS])
def test_a_key_that_a_claim_would_change_is_refused(dialect: str) -> None:
    with pytest.raises(ArgumentError, match=r"'status', which a claim writes.*never changes"):
        claim_statements(Restless, dialect=dialect)


# -- keys of several columns -----------------------------------------------------


@servers
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
