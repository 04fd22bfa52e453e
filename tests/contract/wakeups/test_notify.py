"""PostgreSQL's notifications: which verbs send one, once for each transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    JobQueue,
    cancel,
    claim,
    complete,
    enqueue,
    fail,
    reap,
    release,
    retry,
    start_round,
)
from sa_jobqueue.workflow import Workflow
from tests.contract.wakeups.conftest import Heard
from tests.contract.wakeups.support import Cargo, Hostile, Parcel, Postcard, Reader, add_parcels
from tests.support import Sessions, statements_seen

pytestmark = pytest.mark.only_on("postgresql")

PARCEL = Parcel.__tablename__
FAR = datetime(2090, 1, 1, tzinfo=UTC)


def test_a_transaction_sends_one_notification_for_each_queue_with_its_commit_and_others_none(
    engine: Engine, session: Session, heard: Heard
) -> None:
    with statements_seen(engine) as seen:
        for name in "abc":
            enqueue(session, Parcel, [{"name": name}], run_at=FAR)
            session.add_all([Parcel(name=name), Postcard(name=name), Hostile()])
        session.flush()
        assert heard() == []
        session.commit()

    assert sorted(heard()) == sorted([PARCEL, Hostile.__tablename__])
    assert sum("NOTIFY" in statement for statement in seen) == 2
    session.execute(insert(Parcel.__table__), [{"name": "a"}])  # type: ignore[arg-type]  # a Table
    session.commit()
    assert heard() == []


def test_every_verb_that_makes_a_job_claimable_notifies(
    engine: Engine, session: Session, heard: Heard
) -> None:
    def claimed() -> object:
        jobs = claim(session, Parcel, owner="w")
        session.commit()
        assert heard() == []
        return jobs

    def told(verb: Callable[..., object], jobs: object, **options: object) -> list[str]:
        verb(session, jobs, **options)
        session.commit()
        return heard()

    add_parcels(session, "a")
    assert heard() == [PARCEL]
    assert told(release, claimed()) == [PARCEL]
    assert told(fail, claimed(), retry_in=timedelta(0)) == [PARCEL]
    claimed()
    assert told(reap, Parcel, lease=timedelta(microseconds=1)) == [PARCEL]
    job = claimed()
    assert told(complete, job) == []
    assert told(retry, job) == [PARCEL]
    packing = JobQueue(Parcel, then="packed")
    job = packing.claim(session, owner="w")
    assert told(packing.complete, job) == [PARCEL]
    assert told(cancel, job) == []
    for starter in (session, engine):
        session.add(Reader(status="done"))
        session.commit()
        start_round(starter, Reader)
        session.commit()
        assert heard() == [Reader.__tablename__]


def test_the_moves_of_a_workflow_notify_where_a_step_claims_from_the_new_status(
    session: Session, heard: Heard
) -> None:
    workflow = Workflow(Cargo)
    workflow.step("unclaimed", during="claimed", then="at customs")(lambda cargo: None)
    workflow.waiting("at customs", signals=["cleared", "failed"])
    workflow.step("cleared", during="loading", then="done")(lambda cargo: None)
    kept, lost = Cargo(status="at customs"), Cargo(status="at customs")
    session.add_all([kept, lost])
    session.commit()

    workflow.signal(session, lost, "failed")
    session.commit()
    assert heard() == []
    workflow.signal(session, kept, "cleared")
    session.commit()

    assert heard() == [Cargo.__tablename__]


def in_savepoints(session: Session) -> None:
    around = session.begin_nested()
    with session.begin_nested():
        enqueue(session, Parcel, [{"name": "a"}])
    around.rollback()


def in_core_savepoint(session: Session) -> None:
    savepoint = session.connection().begin_nested()
    enqueue(session, Parcel, [{"name": "a"}])
    savepoint.rollback()


def in_textual_savepoint(session: Session) -> None:
    session.execute(text("SAVEPOINT a"))
    enqueue(session, Parcel, [{"name": "a"}])
    session.execute(text("ROLLBACK TO SAVEPOINT a"))


def in_joined_session(session: Session) -> None:
    connection = session.connection()
    savepoint = connection.begin_nested()
    add_parcels(Session(connection, join_transaction_mode="create_savepoint"), "a")
    savepoint.rollback()


def in_a_transaction(session: Session) -> None:
    enqueue(session, Parcel, [{"name": "a"}])
    session.rollback()


@pytest.mark.parametrize(
    "roll_back",
    [in_savepoints, in_core_savepoint, in_textual_savepoint, in_joined_session, in_a_transaction],
)
def test_what_was_rolled_back_takes_no_notification_along(
    session: Session, heard: Heard, roll_back: Callable[[Session], None]
) -> None:
    roll_back(session)
    if roll_back in (in_savepoints, in_a_transaction):  # of which the session knows
        session.commit()
        assert heard() == []
    enqueue(session, Parcel, [{"name": "b"}])
    session.commit()

    assert heard() == [PARCEL]


def test_each_statement_notifies_under_autocommit(
    engine: Engine, new_session: Sessions, heard: Heard
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))

    enqueue(session, Parcel, [{"name": "a"}])

    assert heard() == [PARCEL]


def test_a_two_phase_session_makes_jobs_and_notifies_nobody(
    engine: Engine, new_session: Sessions, heard: Heard
) -> None:
    session = new_session(twophase=True)

    with statements_seen(engine) as seen:
        enqueue(session, Parcel, [{"name": "a"}])
        session.add(Parcel(name="b"))
        session.flush()

    assert not any("NOTIFY" in statement for statement in seen)
    session.rollback()
    assert heard() == []
