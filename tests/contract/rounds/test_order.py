"""The order of claims with rounds, and the index that they walk."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, claim_statements
from tests.contract.plans import analyze, explained, fill, locking, rows_read, sorts_the_queue
from tests.contract.round_models import Device, Pet, Sensor, Subscriber
from tests.innodb_locks import locked_rows

# -- the order of claims --------------------------------------------------------


def put(session: Session, entity: Any, **columns: list[Any]) -> None:
    """Commit rows with these values, their ids from 1 on."""
    values = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    session.execute(insert(entity), [{"id": id_, **row} for id_, row in enumerate(rows, 1)])
    session.commit()


def test_claims_go_by_round_and_then_by_key(session: Session, strategy: str) -> None:
    put(session, Subscriber, round=[2, 1, 2, 0, 1, 3])

    claimed = claim(session, Subscriber, owner="w", limit=5, strategy=strategy)

    assert [job.id for job in claimed] == [4, 2, 5, 1, 3]
    session.rollback()


LATER = datetime.now(UTC) + timedelta(days=1)
SOON, SOONER = datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("rows", [False, True])
def test_claims_go_by_round_priority_and_time(session: Session, strategy: str, rows: bool) -> None:
    put(
        session,
        Device,
        round=[1, 1, 1, 2, 2, 0, 2, 1],
        priority=[5, 3, 3, 0, 0, 9, 1, -1],
        run_at=[SOON, SOON, SOONER, SOON, SOONER, SOON, LATER, LATER],
    )
    queue = JobQueue(Device, strategy=strategy)

    take: Any = queue.claim_rows if rows else queue.claim

    assert [job.id for job in take(session, owner="w", limit=9)] == [6, 3, 2, 1, 5, 4]
    session.rollback()
    assert [job.id for job in take(session, owner="w", limit=2)] == [6, 3]
    session.rollback()


@pytest.mark.parametrize("entity", [Device, Sensor])
def test_the_jobs_of_one_round_are_claimed_in_their_order(
    session: Session, strategy: str, entity: Any
) -> None:
    put(session, entity, round=[2, 1, 2, 1, 3], run_at=[SOON, SOON, SOONER, LATER, SOONER])

    claimed = claim(session, entity, entity.round == 2, owner="w", limit=9, strategy=strategy)

    assert [job.id for job in claimed] == [3, 1]
    session.rollback()


def test_strict_claims_go_by_round_too(session: Session) -> None:
    put(session, Device, round=[2, 1, 1], priority=[0, 7, 3], run_at=[SOON] * 3)

    claimed = JobQueue(Device, strict_order=True).claim(session, owner="w", limit=2)

    assert [job.id for job in claimed] == [3, 2]


# -- the index ------------------------------------------------------------------


@pytest.fixture
def many(engine: Engine) -> Engine:
    """10,000 rows, one in fifty claimable: the first half in round 1, the others in round 2."""
    fill(
        engine,
        "INSERT INTO round_pet (kind, status, round) SELECT 'pet', "
        "CASE WHEN number % 50 = 0 THEN 'unclaimed' ELSE 'done' END, "
        "CASE WHEN number <= 5000 THEN 1 ELSE 2 END",
        10_000,
    )
    analyze(engine, "round_pet")
    return engine


def test_the_claims_of_a_round_walk_the_claim_index(many: Engine, strategy: str) -> None:
    for where in ((), (Pet.round == 2,)):
        queue = JobQueue(Pet, *where, strategy=strategy)
        with Session(many) as session:
            statements = claim_statements(queue, dialect=session.connection().dialect)

            plan = explained(session.connection(), locking(statements, many))
            before = rows_read(session.connection())
            claimed = queue.claim(session, owner="w", limit=10)

            assert re.search(r"'?ix_round_pet_claim\b(?!,)", plan), plan
            assert not sorts_the_queue(plan, many), plan
            assert {pet.round for pet in claimed} == ({2} if where else {1})
            assert [pet.id for pet in claimed] == sorted(pet.id for pet in claimed)
            assert rows_read(session.connection()) - before < 500
            session.rollback()


def test_a_claim_of_one_round_needs_no_candidates(many: Engine) -> None:
    """The claim index serves `round = n`: InnoDB locks what it takes, and little more."""
    with Session(many) as session:
        claimed = claim(session, Pet, Pet.round == 2, owner="w", limit=10)

        assert (len(claimed), claimed.candidates) == (10, None)
        if many.dialect.name in ("mysql", "mariadb"):
            assert locked_rows(session.connection(), "round_pet") <= 30
        session.rollback()
