"""pause(), resume() and paused()."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue
from sa_jobqueue.control import control_tables, pause, paused, read_control, resume
from tests.models import Email

from .conftest import TABLES, Letter, Parcel


def test_a_queue_is_paused_until_it_is_resumed(session: Session) -> None:
    assert pause(session, Letter)
    assert not pause(session, JobQueue(Letter, Letter.id > 1))  # of the same table
    session.commit()

    (found,) = paused(session, tables=TABLES)
    assert found.queue == "controlled_letter"
    assert abs(found.since - datetime.now(UTC)) < timedelta(hours=1)
    assert resume(session, Letter)
    assert not resume(session, Letter)
    assert paused(session, tables=TABLES) == []


def test_a_pause_holds_from_the_commit_on(
    session: Session, new_session: Callable[[], Session]
) -> None:
    other = new_session()
    pause(session, Letter)
    session.rollback()

    assert paused(other, tables=TABLES) == []


def test_a_worker_sees_the_pauses_of_its_own_queues(session: Session) -> None:
    pause(session, Parcel)

    state = read_control(session, [Letter], owner="w", tables=TABLES)
    assert state.paused == frozenset()
    state = read_control(session, [Letter, Parcel], owner="w", tables=TABLES)
    assert state.is_paused(Parcel)
    assert not state.is_paused(Letter)


def test_a_queue_with_a_ready_status_of_its_own_is_paused_alone(session: Session) -> None:
    opened = JobQueue(Letter, ready="opened", during="reading", then="read")
    pause(session, opened)

    assert [found.queue for found in paused(session, tables=TABLES)] == ["controlled_letter/opened"]
    state = read_control(session, [Letter, opened], owner="w", tables=TABLES)
    assert state.is_paused(opened)
    assert not state.is_paused(Letter)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite has one writer at a time
def test_two_who_pause_a_queue_at_once_do_each_other_no_harm(
    session: Session, new_session: Callable[[], Session]
) -> None:
    other = new_session()
    other.connection()
    pause(session, Letter)

    def pause_too() -> None:
        pause(other, Letter)
        other.commit()

    waiting = threading.Thread(target=pause_too)
    waiting.start()
    session.commit()
    waiting.join(10)

    assert len(paused(session, tables=TABLES)) == 1


@pytest.mark.only_on("sqlite")
def test_a_queue_without_control_tables_names_the_way_out(session: Session) -> None:
    with pytest.raises(ArgumentError, match="control_tables"):
        pause(session, Email)
    control_tables(MetaData())
    with pytest.raises(ArgumentError, match="not a mapped class"):
        pause(session, "email")


@pytest.mark.only_on("sqlite")
def test_several_control_tables_of_a_process_have_to_be_named(session: Session) -> None:
    metadata = MetaData()
    control_tables(metadata)

    with pytest.raises(ArgumentError, match="tables="):
        paused(session)
    assert control_tables(metadata) is control_tables(metadata)


@pytest.mark.only_on("sqlite")
def test_a_table_of_the_users_own_is_not_taken_for_ours() -> None:
    class Own(DeclarativeBase):
        pass

    class Worker(JobMixin, Own):
        __tablename__ = "job_workers"
        name: Mapped[str] = mapped_column(String(20), primary_key=True)

    with pytest.raises(ArgumentError, match="prefix="):
        control_tables(Own.metadata)
    assert control_tables(Own.metadata, prefix="queue").workers.name == "queue_workers"
