"""Two starts at once, and starts while others claim."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from sqlalchemy import URL, Engine, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, claim, complete, is_transient, round_progress, start_round
from sa_jobqueue.owners.named_lock import lock_holder
from sa_jobqueue.rounds import RoundStart
from tests.contract.claimers import committed
from tests.contract.round_models import Line, Subscriber, add, state
from tests.contract.steps import before
from tests.support import SERVERS, Sessions, cut_connections, impatient


def test_two_starts_by_engines_run_one_after_the_other(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 6)
    numbers: list[int] = []
    second = threading.Thread(
        target=lambda: numbers.append(start_round(engine, Subscriber, chunk=2))
    )
    rows_of_the_first: list[int] = []

    def meet(progress: RoundStart) -> None:
        if not second.ident:
            second.start()
        with Session(engine) as reader:
            assert lock_holder(reader.connection(), LOCK) is not None
            rows_of_the_first.append(round_progress(reader, Subscriber, progress.round).total)

    first = start_round(engine, Subscriber, chunk=2, on_progress=meet)
    second.join(30)

    assert (first, numbers) == (1, [2])
    assert rows_of_the_first[:3] == [2, 4, 6]
    assert state(session) == dict.fromkeys(range(1, 7), ("unclaimed", 2))


@pytest.mark.only_on(*SERVERS)
def test_a_row_that_a_newer_round_takes_just_before_the_update_stays_there(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 2)

    def take() -> None:
        start_round(session, Subscriber, Subscriber.id == 1)
        session.commit()

    with before(engine, "UPDATE round_subscriber SET round", take):
        start_round(engine, Subscriber)

    assert state(session) == {1: ("unclaimed", 2), 2: ("unclaimed", 1)}


@pytest.mark.only_on("postgresql")
def test_a_start_in_a_session_overtakes_another_between_its_chunks_only(
    engine: Engine, session: Session
) -> None:
    """Else rows inserted after its commit would join the overtaken round."""
    add(session, Subscriber, 2)

    def overtake() -> None:
        session.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            start_round(session, Subscriber)
        session.rollback()

    with before(engine, "UPDATE round_subscriber SET round", overtake) as tried:
        start_round(engine, Subscriber, chunk=None)

    assert tried


LOCK = "sa_jobqueue rounds of round_subscriber"


@pytest.mark.only_on(*SERVERS)
def test_a_start_that_lost_its_lock_changes_no_more_rows_and_can_be_finished(
    engine: Engine, session: Session, db_url: URL, db_alias: str
) -> None:
    add(session, Subscriber, 4)
    session.close()

    with pytest.raises(LockLost):
        start_round(
            engine,
            Subscriber,
            chunk=2,
            on_progress=lambda _: cut_connections(db_url, db_alias),
        )

    engine.dispose()
    assert round_progress(session, Subscriber).total == 2
    session.commit()
    assert start_round(engine, Subscriber) == 1
    assert round_progress(session, Subscriber).total == 4


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


@pytest.mark.only_on("sqlite")
def test_a_chunk_that_finds_a_lock_is_tried_again(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, Subscriber, 2)
    session.execute(update(Subscriber).values(kind=2))  # not committed
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        session.commit()

    monkeypatch.setattr("sa_jobqueue.sessions.transactions.time.sleep", wait)

    number = start_round(impatient(engine), Subscriber)

    assert (number, len(waited)) == (1, 1)
    assert state(session) == dict.fromkeys((1, 2), ("unclaimed", 1))


@pytest.mark.only_on("sqlite")
def test_a_second_start_waits_for_the_only_writer(
    engine: Engine, session: Session, new_session: Sessions
) -> None:
    add(session, Subscriber, 2)
    start_round(session, Subscriber)

    with pytest.raises(Exception, match="locked") as refused:
        start_round(new_session(impatient(engine)), Subscriber)

    assert is_transient(refused.value)


def test_rows_are_done_once_in_a_round_that_starts_while_claimers_work(
    engine: Engine, session: Session
) -> None:
    rows = 120
    add(session, Subscriber, rows)
    start_round(engine, Subscriber)
    halfway, ended = threading.Event(), threading.Event()

    def work(name: str) -> None:
        last = False
        while turn(name) or not last:
            last = ended.is_set()

    def turn(name: str) -> bool:
        claimed = committed(engine, lambda own: claim(own, Subscriber, owner=name, limit=7))
        lines = [{"job": job.id, "in_round": job.round} for job in claimed]

        def finish(own: Session) -> None:
            complete(own, claimed)
            own.execute(insert(Line), lines)

        if claimed:
            committed(engine, finish)
            with Session(engine) as reader:
                if len(reader.scalars(select(Line.id)).all()) > rows // 3:
                    halfway.set()
        return bool(claimed)

    workers = [threading.Thread(target=work, args=(f"w{n}",), daemon=True) for n in range(3)]
    for worker in workers:
        worker.start()
    assert halfway.wait(60)
    number = start_round(engine, Subscriber, chunk=25)
    ended.set()
    for worker in workers:
        worker.join(60)

    done = Counter(map(tuple, session.execute(select(Line.in_round, Line.job))))
    assert set(done.values()) == {1}
    assert {job for in_round, job in done if in_round == number} == set(range(1, rows + 1))
    assert state(session) == dict.fromkeys(range(1, rows + 1), ("done", number))
