"""A round is started in one transaction or chunk by chunk; an interrupted start is finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import claim, claimed_by, complete, enqueue, round_progress, start_round
from sa_jobqueue.rounds import RoundProgress, RoundStart
from tests.contract.round_models import Cat, Pet, Reader, Subscriber, add, finish_all, state
from tests.support import Sessions, statements_seen

Start = Callable[..., int]


class Broken(Exception):
    """The error that interrupts the start of a round."""


def break_off(engine: Engine, *args: Any, chunks: int = 1, **options: Any) -> int:
    """Start a round by an engine, interrupt it after some chunks, and return its number."""
    told: list[RoundStart] = []

    def tell(progress: RoundStart) -> None:
        told.append(progress)
        if len(told) == chunks:
            raise Broken

    with pytest.raises(Broken):
        start_round(engine, *args, on_progress=tell, **options)
    return told[-1].round


# -- in the caller's transaction ------------------------------------------------


def test_a_start_in_a_session_is_rolled_back_with_it(session: Session) -> None:
    add(session, Subscriber, 3)
    (job, *_) = session.scalars(select(Subscriber))

    start_round(session, Subscriber)
    shown = job.round
    session.rollback()

    assert shown == 1
    assert state(session) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    assert start_round(session, Subscriber) == 1


def test_loaded_rows_show_the_new_round_and_the_old_one_after_a_rollback_to_a_savepoint(
    session: Session,
) -> None:
    add(session, Subscriber, 1)
    (job,) = session.scalars(select(Subscriber))
    savepoint = session.begin_nested()

    start_round(session, Subscriber)
    shown = job.round
    savepoint.rollback()

    assert (shown, job.round) == (1, 0)


def test_a_start_without_chunks_is_one_update(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 30)
    told: list[RoundStart] = []

    with statements_seen(engine) as seen:
        start_round(session, Subscriber, Subscriber.kind == 1, chunk=None, on_progress=told.append)

    written = [one for one in seen if one.startswith("UPDATE round_subscriber ")]
    assert len([one for one in written if "WHERE false" not in one and "0 = 1" not in one]) == 1
    assert not [one for one in seen if one.startswith("SELECT round_subscriber.id")]
    assert told == [RoundStart(1, rows=30, skipped=0)]


def test_chunks_are_bounded_and_reported(session: Session, start_either: Start) -> None:
    add(session, Subscriber, 7)
    told: list[RoundStart] = []

    start_either(Subscriber, chunk=3, on_progress=told.append)

    assert [(one.round, one.rows, one.skipped) for one in told] == [(1, 3, 0), (1, 6, 0), (1, 7, 0)]


@pytest.mark.parametrize("chunk", [None, 10])
def test_a_start_blocks_no_readers_and_claims_skip_its_rows(
    session: Session, other: Session, chunk: int | None, db_alias: str
) -> None:
    add(session, Subscriber, 3)

    start_round(session, Subscriber, chunk=chunk)

    assert state(other) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    other.rollback()
    if db_alias != "sqlite":  # one writer at a time
        assert not claim(other, Subscriber, owner="w", limit=3, strategy="skip_locked")
    other.rollback()


def test_a_round_is_started_under_autocommit(
    engine: Engine, session: Session, new_session: Sessions
) -> None:
    add(session, Subscriber, 3)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    with new_session(autocommit) as other:
        first = start_round(other, Subscriber, chunk=2)
    second = start_round(autocommit, Subscriber, chunk=2)

    assert (first, second) == (1, 2)
    assert state(session) == dict.fromkeys((1, 2, 3), ("unclaimed", 2))


# -- broken off, and finished by the next call ----------------------------------


def test_an_interrupted_start_is_finished_by_the_next_call(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 7)
    broken = break_off(engine, Subscriber, Subscriber.kind == 1, chunk=3)
    done = [job.id for job in claim(session, Subscriber, Subscriber.round == broken, owner="w")]
    complete(session, claimed_by(session, Subscriber, "w"))
    session.commit()
    assert not round_progress(session, Subscriber).started
    told: list[RoundStart] = []

    number = start_round(engine, Subscriber, Subscriber.kind == 1, chunk=3, on_progress=told.append)

    assert (number, done) == (broken, [1])
    assert told[-1] == RoundStart(number, rows=4, skipped=0)  # no row that was in the round already
    assert round_progress(session, Subscriber) == RoundProgress(
        number, started=True, unclaimed=6, claimed=0, joining=0, done=1, failed=0, cancelled=0
    )
    session.commit()
    assert start_round(engine, Subscriber, Subscriber.kind == 1) == number + 1


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_start_is_finished_wherever_it_was_interrupted(
    engine: Engine, session: Session, chunks: int
) -> None:
    add(session, Subscriber, 6)
    finish_all(session, Subscriber)

    number = break_off(engine, Subscriber, chunk=2, chunks=chunks)

    assert start_round(engine, Subscriber, chunk=2) == number
    assert state(session) == dict.fromkeys(range(1, 7), ("unclaimed", number))


def test_rows_that_look_forgotten_do_not_make_a_complete_start_interrupted(
    engine: Engine, session: Session
) -> None:
    """A row that was inserted since, a row that is still claimed, and a row of another class."""
    add(session, Subscriber, 2)
    claim(session, Subscriber, owner="w")
    session.commit()
    start_round(engine, Subscriber)
    enqueue(session, Subscriber, [{"id": 3}])
    session.commit()

    assert start_round(engine, Subscriber) == 2


def test_a_start_of_other_criteria_is_a_round_of_its_own(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 4)
    session.execute(update(Subscriber).where(Subscriber.id > 2).values(kind=2))
    session.commit()
    broken = break_off(engine, Subscriber, Subscriber.kind == 1, chunk=1)

    other = start_round(engine, Subscriber, Subscriber.kind == 2)
    again = start_round(engine, Subscriber, Subscriber.kind == 1)

    assert (broken, other, again) == (1, 2, 1)
    assert {id_: round_ for id_, (_, round_) in state(session).items()} == {1: 1, 2: 1, 3: 2, 4: 2}


def test_a_start_of_another_class_of_the_table_is_a_round_of_its_own(
    engine: Engine, session: Session
) -> None:
    session.add_all([Pet(id=1), Pet(id=2), Cat(id=3)])
    session.commit()
    broken = break_off(engine, Pet, chunk=1)

    assert start_round(engine, Cat) == broken + 1
    assert start_round(engine, Pet) == broken


def test_the_criteria_of_an_interrupted_start_are_recognized_with_their_values(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 4)
    names = {
        f"kind {number}": number for number in range(9)
    }  # the order of a set of strings varies
    where = Subscriber.id.in_(set(names.values()))
    broken = break_off(engine, Subscriber, where, chunk=1)

    again = start_round(engine, Subscriber, Subscriber.id.in_(sorted(names.values(), reverse=True)))

    assert again == broken


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
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 6)
    overtaken: list[int] = []

    def overtake(progress: RoundStart) -> None:
        if not overtaken:
            overtaken.append(start_round(session, Subscriber))
            session.add(Subscriber(id=7))  # rows inserted later are in no round
            session.commit()

    number = start_round(engine, Subscriber, chunk=2, on_progress=overtake)

    assert (number, overtaken) == (1, [2])
    taken = dict.fromkeys(range(1, 7), ("unclaimed", 2))
    assert state(session) == {**taken, 7: ("unclaimed", 0)}


def test_claims_may_begin_before_the_last_chunk(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 6)
    finish_all(session, Subscriber)
    finished: list[list[int]] = []

    def work(progress: RoundStart) -> None:
        finished.append(finish_all(session, Subscriber))

    start_round(engine, Subscriber, chunk=2, on_progress=work)

    assert [one for one in finished if one] == [[1, 2], [3, 4], [5, 6]]
    assert state(session) == dict.fromkeys(range(1, 7), ("done", 1))


def test_with_round_mixin_alone_a_row_that_is_done_does_not_join_its_round_twice(
    engine: Engine, session: Session
) -> None:
    add(session, Reader, 4)
    number = break_off(engine, Reader, chunk=2)
    # Write what complete() writes.
    session.execute(
        update(Reader).where(Reader.id == 1).values(round=-number)
    )  # what complete() writes
    session.commit()

    assert start_round(engine, Reader) == number
    assert list(session.scalars(select(Reader.round).order_by(Reader.id))) == [-1, 1, 1, 1]
