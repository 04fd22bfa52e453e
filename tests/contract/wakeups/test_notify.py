"""PostgreSQL's notifications: which verbs send one, once for each transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
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
from sa_jobqueue.dialects.clock import EPOCH
from sa_jobqueue.workflow import Workflow
from tests.contract.wakeups.conftest import Heard
from tests.contract.wakeups.models import Cargo, Hostile, Parcel, Postcard, Reader, add_parcels
from tests.support import Sessions, statements_seen

PARCEL = Parcel.__tablename__
FAR = EPOCH.replace(year=2090)


def notifications(seen: list[str]) -> int:
    return sum("NOTIFY" in statement for statement in seen)


@pytest.mark.only_on("postgresql")
def test_a_notification_comes_with_the_commit(session: Session, heard: Heard) -> None:
    enqueue(session, Parcel, [{"name": "a"}], run_at=FAR)
    assert heard() == []
    session.commit()

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_a_flush_of_new_jobs_notifies_though_no_verb_was_called(
    session: Session, heard: Heard
) -> None:
    session.add_all([Parcel(name="a"), Parcel(name="b"), Postcard(name="c")])
    session.commit()

    assert heard() == [PARCEL]


def test_a_transaction_sends_one_notification_for_a_queue_and_others_none(
    engine: Engine, session: Session, db_alias: str
) -> None:
    with statements_seen(engine) as seen:
        for name in "abc":
            enqueue(session, Parcel, [{"name": name}])
            session.add(Parcel(name=name))
            enqueue(session, Postcard, [{"name": name}])
        session.commit()

    assert notifications(seen) == (db_alias == "postgresql")


@pytest.mark.only_on("postgresql")
def test_every_verb_that_makes_a_job_claimable_notifies(session: Session, heard: Heard) -> None:
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
    assert told(cancel, job) == []


@pytest.mark.only_on("postgresql")
def test_a_finish_with_a_status_that_others_claim_from_notifies(
    session: Session, heard: Heard
) -> None:
    queue = JobQueue(Parcel, then="packed")
    add_parcels(session, "a")
    job = queue.claim(session, owner="w")
    session.commit()
    heard()

    queue.complete(session, job)
    session.commit()

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
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


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("by", ["session", "engine"])
def test_a_new_round_notifies(engine: Engine, session: Session, heard: Heard, by: str) -> None:
    session.add(Reader(status="done"))
    session.commit()

    start_round(session if by == "session" else engine, Reader)
    session.commit()

    assert heard() == [Reader.__tablename__]


@pytest.mark.only_on("postgresql")
def test_what_a_rolled_back_savepoint_took_is_sent_again(session: Session, heard: Heard) -> None:
    around = session.begin_nested()
    with session.begin_nested():
        enqueue(session, Parcel, [{"name": "a"}])
    around.rollback()
    enqueue(session, Parcel, [{"name": "b"}])
    session.commit()

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_a_rolled_back_savepoint_of_a_connection_is_noticed(engine: Engine, heard: Heard) -> None:
    with engine.begin() as connection:
        session = Session(connection)
        add_parcels(session, "a")
    heard()
    with engine.connect() as connection:
        queue = JobQueue(Parcel)
        rows = queue.claim_rows(connection, owner="w")
        connection.commit()
        savepoint = connection.begin_nested()
        release(connection, rows)
        savepoint.rollback()
        release(connection, rows)
        connection.commit()

    assert heard() == [PARCEL]


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


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("roll_back", [in_core_savepoint, in_textual_savepoint, in_joined_session])
def test_a_savepoint_that_the_session_does_not_know_of_takes_no_notification_along(
    session: Session, heard: Heard, roll_back: Callable[[Session], None]
) -> None:
    roll_back(session)
    enqueue(session, Parcel, [{"name": "b"}])
    session.commit()

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_a_rolled_back_savepoint_of_a_session_sends_nothing(session: Session, heard: Heard) -> None:
    with session.begin_nested() as savepoint:
        enqueue(session, Parcel, [{"name": "a"}])
        savepoint.rollback()
    session.commit()

    assert heard() == []


@pytest.mark.only_on("postgresql")
def test_a_transaction_around_that_is_committed_sends_what_its_sessions_noted(
    engine: Engine, heard: Heard
) -> None:
    with engine.begin() as connection:
        joined = Session(connection, join_transaction_mode="create_savepoint")
        add_parcels(joined, "a")
        enqueue(joined, Parcel, [{"name": "b"}])
        joined.rollback()
        assert heard() == []

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_a_commit_that_the_server_refuses_sends_nothing(engine: Engine, heard: Heard) -> None:
    with engine.connect() as connection:
        enqueue(Session(connection), Parcel, [{"name": "a"}])
        with suppress(ProgrammingError):
            connection.execute(text("SELECT nothing"))
        connection.commit()  # the server answers with ROLLBACK

    assert heard() == []


@pytest.mark.only_on("postgresql")
def test_a_rolled_back_transaction_tells_nobody_and_the_next_one_notifies(
    session: Session, heard: Heard
) -> None:
    enqueue(session, Parcel, [{"name": "a"}])
    session.rollback()
    assert heard() == []

    add_parcels(session, "a")

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_each_statement_notifies_under_autocommit(
    engine: Engine, new_session: Sessions, heard: Heard
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))

    enqueue(session, Parcel, [{"name": "a"}])

    assert heard() == [PARCEL]


@pytest.mark.only_on("postgresql")
def test_a_table_with_a_hostile_name_has_a_channel(session: Session, heard: Heard) -> None:
    session.add(Hostile())
    session.commit()

    assert heard() == [Hostile.__tablename__]


@pytest.mark.only_on("postgresql")
def test_a_core_insert_notifies_nobody(session: Session, heard: Heard) -> None:
    session.execute(insert(Parcel.__table__), [{"name": "a"}])  # type: ignore[arg-type]  # a Table
    session.commit()

    assert heard() == []


@pytest.mark.only_on("postgresql")
def test_a_two_phase_session_is_refused(new_session: Sessions) -> None:
    session = new_session(twophase=True)

    with pytest.raises(ArgumentError, match="twophase"):
        enqueue(session, Parcel, [{"name": "a"}])
    session.rollback()
    session.add(Parcel(name="a"))
    with pytest.raises(ArgumentError, match="twophase"):
        session.flush()
