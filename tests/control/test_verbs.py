"""pause(), request_stop() and their like, and the rows of workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, Table, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    Fence,
    JobQueue,
    Owner,
    OwnerState,
    claim,
    complete,
    fence_of,
    release,
    renew,
    utc_now,
)
from sa_jobqueue.control import (
    ControlState,
    control_tables,
    pause,
    paused,
    read_control,
    register_worker,
    request_stop,
    resume,
    workers,
)
from tests.models import Email
from tests.support import statements_seen, until

from .conftest import TABLES, Letter, Parcel, claimed_letters, listed

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


def state_of(session: Session, owner: str | list[str] = "w") -> ControlState:
    found: ControlState = read_control(session, [Letter], owner=owner, tables=TABLES)
    session.commit()
    return found


def test_the_worker_that_has_a_job_is_asked_to_stop_it(
    session: Session, new_session: Callable[[], Session]
) -> None:
    first, second = claimed_letters(session, 2)
    other = new_session()

    assert request_stop(other, other.get_one(Letter, first.id))
    assert request_stop(other, other.get_one(Letter, first.id))  # asked twice
    other.commit()

    state = state_of(session)
    assert state.asks_to_stop(fence_of(first))
    assert not state.asks_to_stop(fence_of(second))
    assert state_of(session, owner="another") == ControlState()
    assert state_of(session, owner=["another", "w"]) == state


def test_a_request_is_forgotten_after_a_day(session: Session) -> None:
    old, new = claimed_letters(session, 2)
    for letter in (old, new):
        request_stop(session, letter)
    stops = TABLES.stops
    long_ago = utc_now(-(timedelta(days=2) // timedelta(microseconds=1)))
    is_old = stops.c.job_key == f"[{old.id}]"
    session.execute(update(stops).where(is_old).values(since=long_ago))
    session.commit()

    register_worker(session, "w", [Letter], tables=TABLES)
    session.commit()

    state = state_of(session)
    assert not state.asks_to_stop(fence_of(old))
    assert state.asks_to_stop(fence_of(new))


def test_a_job_that_nobody_has_is_not_stopped(session: Session) -> None:
    session.add(Letter(id=7))
    session.commit()

    assert not request_stop(session, session.get_one(Letter, 7))


@pytest.mark.parametrize("given", [lambda letter: letter, fence_of], ids=["entity", "fence"])
def test_a_job_in_a_status_that_its_class_does_not_declare_is_stopped_by_its_fence(
    session: Session, given: Callable[[Letter], Any]
) -> None:
    queue = JobQueue(Letter, ready="packed", during="sending")
    session.add(Letter(id=7, status="packed"))
    session.commit()
    (letter,) = queue.claim(session, owner="w")
    session.commit()

    assert request_stop(session, given(letter))
    session.commit()

    assert state_of(session).asks_to_stop(fence_of(letter))
    queue.complete(session, letter)
    assert not request_stop(session, given(letter))


def test_a_claim_that_was_renewed_is_stopped_and_the_next_attempt_is_not(session: Session) -> None:
    (letter,) = claimed_letters(session)
    renew(session, letter)
    request_stop(session, letter)
    renew(session, letter)
    session.commit()
    assert state_of(session).asks_to_stop(fence_of(letter))

    release(session, letter)
    (again,) = claim(session, Letter, owner="w")

    assert not state_of(session).asks_to_stop(fence_of(again))
    assert request_stop(session, again)
    assert state_of(session).asks_to_stop(fence_of(again))


@pytest.mark.only_on("sqlite")
def test_a_request_that_waited_for_the_end_of_its_job_says_that_nobody_has_it(
    engine: Engine, session: Session, new_session: Callable[[], Session]
) -> None:
    (letter,) = claimed_letters(session)
    complete(session, letter)  # as a transactional handler, it keeps the write lock of the file
    other = new_session()

    assert not asked_while(engine, other, fence_of(letter), session.commit)

    assert other.scalar(select(func.count()).select_from(TABLES.stops)) == 0


def asked_while(engine: Engine, session: Session, fence: Fence, act: Callable[[], None]) -> bool:
    """Ask for a job, and act while the request waits for a lock; return its answer."""
    with statements_seen(engine) as seen, ThreadPoolExecutor() as threads:
        asked = threads.submit(request_stop, session, fence)
        until(lambda: [each for each in seen if not each.startswith(("SELECT", "SET", "PRAGMA"))])
        act()
        return asked.result()


def test_the_lock_of_a_worker_tells_whether_it_is_alive(engine: Engine, session: Session) -> None:
    def states() -> dict[str, OwnerState]:
        return {worker.name: worker.state for worker in listed(session)}

    with Owner(engine) as owner:
        name = owner.name
        register_worker(session, name, [Letter], tables=TABLES)
        register_worker(session, "plain", [Letter], tables=TABLES)
        session.commit()
        assert states() == {name: OwnerState.ALIVE, "plain": OwnerState.UNKNOWN}

    assert states() == {name: OwnerState.DEAD, "plain": OwnerState.UNKNOWN}


def test_a_dead_worker_is_forgotten_after_a_day_and_a_living_one_never(
    engine: Engine, session: Session, new_session: Callable[[], Session]
) -> None:
    with Owner(engine) as owner:
        for name in (owner.name, "killed", "new"):
            register_worker(session, name, [Letter], tables=TABLES)
        old = utc_now(-(timedelta(days=2) // timedelta(microseconds=1)))
        table = TABLES.workers
        session.execute(update(table).where(table.c.name != "new").values(seen_at=old))
        session.commit()

        register_worker(session, "last", [Letter], tables=TABLES)
        session.commit()

        left = {worker.name for worker in listed(session)}
        assert left == {owner.name, "new", "last"}


def test_queues_tell_which_control_tables_are_theirs(session: Session) -> None:
    other = MetaData()
    control_tables(other)  # in the same process
    pause(session, Letter)

    register_worker(session, "w-1", iter([Letter, Parcel]))

    (found,) = workers(session, tables=TABLES)
    assert found.queues == ("controlled_letter", "controlled_parcel")
    assert read_control(session, iter([Parcel, Letter]), owner="w-1").is_paused(Letter)
