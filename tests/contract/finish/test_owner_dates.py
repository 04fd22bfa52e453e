"""A claim's owner_date is never one that its owner had before, however coarse the clock.

The clocks of these tests stand still, so that two claims of one owner happen at the same time
by construction and not by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, ClaimLost, JobQueue, claim, complete, release, renew
from tests.models import Email, Task, add_tasks
from tests.support import MARKING

pytestmark = pytest.mark.strategies(*MARKING)

# On PostgreSQL two statements begin at the same time; the clock goes on while they run.
STAND_STILL = {
    "mysql": "SET timestamp = 1700000000.123456",
    "mariadb": "SET timestamp = 1700000000.123456",
    "postgresql": "SET search_path = standing, public, pg_catalog",
}

STATEMENTS_BEGIN_TOGETHER = """
CREATE SCHEMA IF NOT EXISTS standing;
CREATE OR REPLACE FUNCTION standing.statement_timestamp() RETURNS timestamptz
LANGUAGE sql STABLE AS 'SELECT timestamptz ''2023-11-14 22:13:20.123456+00'''
"""


@pytest.fixture(autouse=True)
def standing_clock(engine: Engine, db_alias: str) -> Iterator[None]:
    """Have the clock stand still in all connections that are made meanwhile."""

    def stand_still(connection: Any, *_: Any) -> None:
        if db_alias == "sqlite":
            connection.create_function("strftime", -1, lambda *_: "2023-11-14 22:13:20.123")
        else:
            connection.cursor().execute(STAND_STILL[db_alias])
            connection.commit()

    if db_alias == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql(STATEMENTS_BEGIN_TOGETHER)
    engine.dispose()
    event.listen(engine, "connect", stand_still)
    yield
    event.remove(engine, "connect", stand_still)
    engine.dispose()


def rolled_back(session: Session, claim: Callable[[], Any]) -> Any:
    stale = claim()
    session.rollback()
    return stale


def behind_a_savepoint(session: Session, claim: Callable[[], Any]) -> Any:
    with session.begin_nested() as savepoint:
        stale = claim()
        savepoint.rollback()
    return stale


def released(session: Session, claim: Callable[[], Any]) -> Any:
    stale = claim()
    release(session, stale)
    return stale


@pytest.mark.parametrize("end", [rolled_back, behind_a_savepoint, released])
def test_the_fence_of_a_claim_that_has_ended_does_not_fit_the_next(
    session: Session, strategy: str, end: Callable[..., Any]
) -> None:
    add_tasks(session, "a", "b")
    queue = JobQueue(Task, strategy=strategy)
    stale = end(session, lambda: queue.claim(session, owner="w", limit=2).fences)
    present = queue.claim_rows(session, owner="w", limit=2)

    with pytest.raises(ClaimLost):
        complete(session, stale)

    complete(session, present)


def test_the_renewal_of_a_lost_claim_does_not_take_the_present_one(
    session: Session, claimed: Claim[Email], strategy: str
) -> None:
    stale = claimed.fences
    release(session, claimed)
    present = claim(session, Email, owner="w", limit=3, strategy=strategy).fences
    session.commit()

    with pytest.raises(ClaimLost):
        renew(session, [*stale, *present])
    session.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, stale)
    assert len(lost.value.lost) == 3
    complete(session, present)
