"""The order of claims with rounds, and the index that they walk."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim_statements
from tests.contract.plans import analyze, explained, fill, locking, rows_read, sorts_the_queue
from tests.contract.round_models import Device, Pet

pytestmark = pytest.mark.by_turns("mysql", "mariadb")

# -- the order of claims --------------------------------------------------------


def put(session: Session, entity: Any, **columns: list[Any]) -> None:
    """Commit rows with these values, their ids from 1 on."""
    values = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    session.execute(insert(entity), [{"id": id_, **row} for id_, row in enumerate(rows, 1)])
    session.commit()


LATER = datetime.now(UTC) + timedelta(days=1)
SOON, SOONER = datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)


def test_claims_go_by_round_priority_and_time(session: Session, strategy: str) -> None:
    put(
        session,
        Device,
        round=[1, 1, 1, 2, 2, 0, 2, 1],
        priority=[5, 3, 3, 0, 0, 9, 1, -1],
        run_at=[SOON, SOON, SOONER, SOON, SOONER, SOON, LATER, LATER],
    )
    for queue, keys in (
        (JobQueue(Device, strategy=strategy), [6, 3, 2, 1, 5, 4]),
        (JobQueue(Device, Device.round == 2, strategy=strategy), [5, 4]),
    ):
        assert [job.id for job in queue.claim(session, owner="w", limit=9)] == keys
        session.rollback()
        assert [job.id for job in queue.claim_rows(session, owner="w", limit=2)] == keys[:2]
        session.rollback()


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
