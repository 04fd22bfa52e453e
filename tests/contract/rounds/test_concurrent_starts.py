"""Two starts at once, and starts while others claim."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from sqlalchemy import URL, Engine, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, claim, complete, named_lock, round_progress, start_round
from sa_jobqueue.events import Event
from tests.contract.claimers import committed
from tests.contract.round_models import Line, Subscriber, add, state
from tests.contract.steps import before
from tests.support import SERVERS, Sessions, cut_connections

from .conftest import OnChunk

pytestmark = pytest.mark.by_turns("mysql", "mariadb")


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
