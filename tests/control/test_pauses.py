"""pause(), resume() and paused()."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import MetaData, Table
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.control import (
    control_tables,
    pause,
    paused,
    read_control,
    register_worker,
    request_stop,
    resume,
)
from tests.models import Email

from .conftest import TABLES, Letter, Parcel, claimed_letters

#: Metadata with a table of the user's own that has the name of one of ours.
OWN = MetaData()
Table("job_workers", OWN)


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


def test_a_worker_sees_the_pauses_of_its_own_queues_also_of_a_status(session: Session) -> None:
    opened = JobQueue(Letter, ready="opened", during="reading", then="read")
    pause(session, opened)
    pause(session, Parcel)

    assert read_control(session, [Letter], owner="w", tables=TABLES).paused == frozenset()
    state = read_control(session, [Letter, opened, Parcel], owner="w", tables=TABLES)
    assert state.paused == {"controlled_letter/opened", "controlled_parcel"}
    assert [state.is_paused(queue) for queue in (Letter, opened, Parcel)] == [False, True, True]


@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite has one writer at a time
def test_two_who_pause_a_queue_at_once_do_each_other_no_harm(
    session: Session, new_session: Callable[[], Session]
) -> None:
    other = new_session()
    other.connection()
    pause(session, Letter)

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(pause, other, Letter)
        session.commit()
        waiting.result(10)
    other.commit()

    assert len(paused(session, tables=TABLES)) == 1


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda session: pause(session, Email), "has no control tables: call control_tables"),
        (lambda session: pause(session, "email"), "not a mapped class"),
        (lambda session: paused(session), "tables="),
        (lambda session: register_worker(session, "w-1", []), "tables="),
        (lambda session: register_worker(session, "w-1", [Email]), "has no control tables"),
        (lambda session: request_stop(session, []), "0 jobs.*for each"),
        (lambda session: request_stop(session, claimed_letters(session, 2)), "2 jobs.*for each"),
        (lambda _: control_tables(OWN), "prefix="),
    ],
)
def test_what_cannot_be_controlled_names_the_way_out(
    session: Session, call: Callable[[Session], object], said: str
) -> None:
    metadata = MetaData()
    assert control_tables(metadata) is control_tables(metadata)  # a second set in this process

    with pytest.raises(ArgumentError, match=said):
        call(session)


@pytest.mark.only_on("sqlite")
def test_with_another_prefix_the_names_are_free() -> None:
    assert control_tables(OWN, prefix="queue").workers.name == "queue_workers"
