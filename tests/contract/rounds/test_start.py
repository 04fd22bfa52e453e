"""A round is started in one transaction or chunk by chunk; an interrupted start is finished."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, update
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, round_progress, start_round
from sa_jobqueue.events import Event
from sa_jobqueue.rounds import RoundProgress
from tests.contract.round_models import Subscriber, add, finish_all, state

from .conftest import OnChunk

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


class Broken(Exception):
    """The error that interrupts the start of a round."""


def break_off(engine: Engine, entity: Any, *where: Any, chunk: int, chunks: int = 1) -> int:
    """Start a round by an engine, interrupt it after some chunks, and return its number."""
    written: list[str] = []

    def interrupt(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        table, set_ = statement.removeprefix("UPDATE ").split(" ", 1)
        if table == entity.__tablename__ and "SET round" in set_:
            written.append(statement)
            if len(written) > chunks:
                raise Broken

    event.listen(engine, "before_cursor_execute", interrupt)
    with pytest.raises(Broken):
        start_round(engine, entity, *where, chunk=chunk)
    event.remove(engine, "before_cursor_execute", interrupt)
    with Session(engine) as session:
        return round_progress(session, entity).round


# -- in the caller's transaction ------------------------------------------------


def test_a_start_in_a_session_is_rolled_back_with_it(session: Session) -> None:
    add(session, Subscriber, 3)
    (job, *_) = session.query(Subscriber)

    start_round(session, Subscriber)
    shown = job.round
    session.rollback()

    assert shown == 1
    assert state(session) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    assert start_round(session, Subscriber) == 1


def test_a_start_blocks_no_readers_and_claims_skip_its_rows(
    session: Session, other: Session, db_alias: str
) -> None:
    add(session, Subscriber, 3)

    start_round(session, Subscriber)

    assert state(other) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    other.rollback()
    if db_alias != "sqlite":  # one writer at a time
        assert not claim(other, Subscriber, owner="w", limit=3, strategy="skip_locked")
    other.rollback()


# -- chunk by chunk -------------------------------------------------------------


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


def test_an_interrupted_start_is_finished_by_the_next_call(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 7)
    broken = break_off(engine, Subscriber, Subscriber.kind == 1, chunk=3)
    jobs = claim(session, Subscriber, Subscriber.round == broken, owner="w")
    complete(session, jobs)
    session.commit()
    interrupted = round_progress(session, Subscriber)
    session.commit()

    number = start_round(engine, Subscriber, Subscriber.kind == 1, chunk=3)

    assert (interrupted.started, interrupted.total) == (False, 3)
    assert number == broken
    assert round_progress(session, Subscriber) == RoundProgress(
        number, started=True, unclaimed=6, claimed=0, joining=0, done=1, failed=0, cancelled=0
    )
    session.commit()
    assert start_round(engine, Subscriber, Subscriber.kind == 1) == number + 1


def test_a_start_of_other_criteria_is_a_round_of_its_own(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 4)
    session.execute(update(Subscriber).where(Subscriber.id > 2).values(kind=2))
    session.commit()
    broken = break_off(engine, Subscriber, Subscriber.kind == 1, chunk=1)

    other = start_round(engine, Subscriber, Subscriber.kind == 2)
    again = start_round(engine, Subscriber, Subscriber.kind == 1)

    assert (broken, other, again) == (1, 2, 1)
    assert {id_: round_ for id_, (_, round_) in state(session).items()} == {1: 1, 2: 1, 3: 2, 4: 2}


def test_the_criteria_of_an_interrupted_start_are_recognized_with_their_values(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 4)
    broken = break_off(engine, Subscriber, Subscriber.id.in_(set(range(9))), chunk=1)

    reverse = Subscriber.id.in_(sorted(range(9), reverse=True))

    assert start_round(engine, Subscriber, reverse) == broken


def test_a_start_in_a_session_is_a_new_round_and_takes_the_rows_of_an_interrupted_start(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 4)
    broken = break_off(engine, Subscriber, chunk=1)

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
