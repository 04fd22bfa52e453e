"""The watcher's plain read for due jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, enqueue
from sa_jobqueue.dialects import database_of
from sa_jobqueue.wakeups.look import LEVELS, Look
from tests.contract.wakeups.models import Ticket


@pytest.mark.parametrize(("later", "found"), [(LEVELS - 1, True), (LEVELS, False)])
def test_a_look_finds_no_job_behind_twenty_priorities_of_later_jobs(
    engine: Engine, session: Session, later: int, found: bool
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    rows = [{"priority": priority, "run_at": tomorrow} for priority in range(later)]
    enqueue(session, Ticket, [*rows, {"priority": later}])
    session.commit()

    with engine.connect() as connection:
        look = Look([JobQueue(Ticket).plan.spec], database_of(connection), {})
        due_in = look.due_in(connection)

    assert due_in is not None
    assert (due_in <= 0) is found


@pytest.mark.parametrize("hours", [(3, 1, 2), (3, -1, 2)], ids=["later", "due"])
def test_a_look_in_another_order_knows_which_job_is_due_first(
    engine: Engine, session: Session, hours: tuple[int, ...]
) -> None:
    now = datetime.now(UTC)
    enqueue(session, Ticket, [{"run_at": now + timedelta(hours=after)} for after in hours])
    session.commit()
    queue = JobQueue(Ticket, order_by=Ticket.id)

    with engine.connect() as connection:
        due_in = Look([queue.plan.spec], database_of(connection), {}).due_in(connection)

    assert due_in is not None
    assert -1 < due_in / 3600 <= max(0, min(hours))


def test_a_look_in_another_order_of_no_jobs_knows_no_time(engine: Engine) -> None:
    queue = JobQueue(Ticket, order_by=Ticket.id)

    with engine.connect() as connection:
        assert Look([queue.plan.spec], database_of(connection), {}).due_in(connection) is None


def test_a_claim_reads_all_priorities(session: Session) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    rows = [{"priority": priority, "run_at": tomorrow} for priority in range(LEVELS)]
    enqueue(session, Ticket, [*rows, {"priority": LEVELS}])
    session.commit()

    (claimed,) = JobQueue(Ticket).claim(session, owner="w", limit=2)

    assert claimed.priority == LEVELS
