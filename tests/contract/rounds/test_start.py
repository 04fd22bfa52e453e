"""A round is started in one transaction or chunk by chunk, alone or beside others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, update
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, claim, complete, named_lock, round_progress, start_round
from sa_jobqueue.events import Event, listen, remove
from sa_jobqueue.rounds import RoundProgress
from tests.contract.round_models import Subscriber, add, finish_all, state
from tests.contract.steps import before
from tests.support import SERVERS, Sessions, cut_connections, heard

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: Beside others it matters which database runs the test.
two_by_turns = pytest.mark.by_turns("mysql", "mariadb")

OnChunk = Callable[[Callable[[Event], object]], None]


@pytest.fixture
def on_chunk() -> Iterator[OnChunk]:
    """Call a function after the commit of each chunk of subscribers."""
    called: list[Callable[[Event], object]] = []

    def call(function: Callable[[Event], object]) -> None:
        listen(Subscriber, "after_change", function)
        called.append(function)

    yield call
    for function in called:
        remove(Subscriber, "after_change", function)


class Broken(Exception):
    """The error that interrupts the start of a round."""


def break_off(engine: Engine, *where: Any, chunk: int) -> int:
    """Start a round by an engine, interrupt it after its first chunk, and return its number."""
    written: list[str] = []

    def interrupt(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE round_subscriber ") and "SET round" in statement:
            written.append(statement)
            if len(written) > 1:
                raise Broken

    with heard(engine, "before_cursor_execute", interrupt), pytest.raises(Broken):
        start_round(engine, Subscriber, *where, chunk=chunk)
    with Session(engine) as session:
        return round_progress(session, Subscriber).round


# In the caller's transaction


def test_a_start_in_a_session_blocks_nobody_and_is_rolled_back_with_it(
    session: Session, other: Session, db_alias: str
) -> None:
    add(session, Subscriber, 3)
    (job, *_) = session.query(Subscriber)

    start_round(session, Subscriber)
    assert job.round == 1
    assert state(other) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    other.rollback()
    if db_alias != "sqlite":  # one writer at a time
        assert not claim(other, Subscriber, owner="w", limit=3, strategy="skip_locked")
    other.rollback()
    session.rollback()

    assert state(session) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    assert start_round(session, Subscriber) == 1


# Chunk by chunk


def test_each_chunk_is_bounded_and_its_rows_can_be_claimed_once_it_is_committed(
    engine: Engine, session: Session, on_chunk: OnChunk
) -> None:
    add(session, Subscriber, 5)
    finish_all(session, Subscriber)
    chunks: list[Any] = []

    def work(event: Event) -> None:
        if event.verb == "start_round":
            chunks.append((event.count, finish_all(session, Subscriber)))

    on_chunk(work)
    start_round(engine, Subscriber, chunk=2)

    assert chunks == [(2, [1, 2]), (2, [3, 4]), (1, [5])]
    assert state(session) == dict.fromkeys(range(1, 6), ("done", 1))


def test_an_interrupted_start_is_finished_by_the_next_call_with_the_same_criteria(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 8)
    session.execute(update(Subscriber).where(Subscriber.id > 7).values(kind=2))
    session.commit()
    first, again = (Subscriber.id.in_(ids) for ids in (range(1, 8), range(7, 0, -1)))
    broken = break_off(engine, first, chunk=3)
    complete(session, claim(session, Subscriber, Subscriber.round == broken, owner="w"))
    session.commit()
    interrupted = round_progress(session, Subscriber)
    session.commit()

    other = start_round(engine, Subscriber, Subscriber.kind == 2)
    number = start_round(engine, Subscriber, again, chunk=3)

    assert (interrupted.started, interrupted.total) == (False, 3)
    assert (broken, other, number) == (1, 2, 1)
    assert round_progress(session, Subscriber, 1) == RoundProgress(
        1, started=True, unclaimed=6, claimed=0, joining=0, done=1, failed=0, cancelled=0
    )
    session.commit()
    assert start_round(engine, Subscriber, again) == 3


def test_a_start_in_a_session_is_a_new_round_and_takes_the_rows_of_an_interrupted_start(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 4)
    broken = break_off(engine, chunk=1)

    number = start_round(session, Subscriber)
    session.commit()

    assert number == broken + 1
    assert state(session) == dict.fromkeys(range(1, 5), ("unclaimed", number))
    assert start_round(engine, Subscriber) == number + 1  # no interrupted start is left


def test_a_start_by_an_engine_stops_where_one_in_a_session_overtakes_it(
    engine: Engine, session: Session, on_chunk: OnChunk
) -> None:
    add(session, Subscriber, 6)
    overtaken: list[int] = []

    def overtake(event: Event) -> None:
        if not overtaken:
            overtaken.append(0)
            overtaken[0] = start_round(session, Subscriber)
            session.add(Subscriber(id=7))  # rows inserted later are in no round
            session.commit()

    on_chunk(overtake)
    number = start_round(engine, Subscriber, chunk=2)

    assert (number, overtaken) == (1, [2])
    taken = dict.fromkeys(range(1, 7), ("unclaimed", 2))
    assert state(session) == {**taken, 7: ("unclaimed", 0)}


# Beside other starts, and beside claims


@two_by_turns
def test_two_starts_by_engines_run_one_after_the_other(
    engine: Engine, session: Session, on_chunk: OnChunk
) -> None:
    add(session, Subscriber, 6)
    numbers: list[int] = []
    second = threading.Thread(
        target=lambda: numbers.append(start_round(engine, Subscriber, chunk=2))
    )
    rows_of_the_first: list[int] = []

    def meet(_: Event) -> None:
        if not second.ident:
            second.start()
        assert named_lock(engine, "sa_jobqueue rounds of round_subscriber").holder() is not None
        with Session(engine) as reader:
            rows_of_the_first.append(round_progress(reader, Subscriber, 1).total)

    on_chunk(meet)
    first = start_round(engine, Subscriber, chunk=2)
    second.join(30)

    assert (first, numbers) == (1, [2])
    assert rows_of_the_first[:3] == [2, 4, 6]
    assert state(session) == dict.fromkeys(range(1, 7), ("unclaimed", 2))


@two_by_turns
@pytest.mark.only_on(*SERVERS)
def test_a_start_that_lost_its_lock_changes_no_more_rows_and_can_be_finished(
    engine: Engine, session: Session, db_url: URL, db_alias: str, on_chunk: OnChunk
) -> None:
    add(session, Subscriber, 4)
    session.close()
    cut: list[Event] = []

    def cut_once(event: Event) -> None:
        if not cut:
            cut.append(event)
            cut_connections(db_url, db_alias)

    on_chunk(cut_once)
    with pytest.raises(LockLost):
        start_round(engine, Subscriber, chunk=2)

    engine.dispose()
    assert round_progress(session, Subscriber).total == 2
    session.commit()
    assert start_round(engine, Subscriber) == 1
    assert round_progress(session, Subscriber).total == 4


@two_by_turns
@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("first_ends", ["commit", "rollback"])
def test_two_starts_in_sessions_take_two_numbers(
    engine: Engine, session: Session, new_session: Sessions, first_ends: str
) -> None:
    add(session, Subscriber, 4)
    other, numbers = new_session(), []

    def start_too() -> None:
        numbers.append(start_round(other, Subscriber))
        other.commit()

    first = start_round(session, Subscriber)
    with before(engine, "INSERT INTO round_subscriber_rounds", lambda: None) as arrived:
        second = threading.Thread(target=start_too)
        second.start()
        while not arrived:
            second.join(0.01)
        getattr(session, first_ends)()
        second.join(30)

    assert first == 1
    assert numbers == [2 if first_ends == "commit" else 1]
    assert state(session) == dict.fromkeys(range(1, 5), ("unclaimed", numbers[0]))
