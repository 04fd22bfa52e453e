"""How a round is started: in one transaction or chunk by chunk, broken off, two at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import (
    LockLost,
    RoundProgress,
    RoundStart,
    claim,
    claimed_by,
    complete,
    enqueue,
    is_transient,
    round_progress,
    start_round,
)
from sa_jobqueue.owners.named_lock import lock_holder
from tests.contract.claimers import committed
from tests.contract.round_models import (
    Badge,
    Cat,
    Line,
    Member,
    Pet,
    Reader,
    Subscriber,
    add,
    emptied,
    finish_all,
    state,
)
from tests.contract.test_interleaved import before
from tests.support import cut_connections, impatient, statements_seen

Sessions = Callable[..., Session]
Start = Callable[..., int]


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return emptied(engine)


@pytest.fixture(autouse=True)
def _no_lock_is_left(engine: Engine) -> Iterator[None]:
    yield
    with engine.connect() as connection:
        assert lock_holder(connection, LOCK) is None


class Broken(Exception):
    """What breaks the start of a round off."""


def break_off(engine: Engine, *args: Any, chunks: int = 1, **options: Any) -> int:
    """Start a round by an engine, and break it off after some chunks; return its number."""
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


def test_what_a_session_has_loaded_shows_the_round_and_not_that_of_a_savepoint(
    session: Session,
) -> None:
    add(session, Subscriber, 1)
    (job,) = session.scalars(select(Subscriber))
    savepoint = session.begin_nested()

    start_round(session, Subscriber)
    shown = job.round
    savepoint.rollback()

    assert (shown, job.round) == (1, 0)


def test_without_chunks_it_is_one_update(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 30)
    told: list[RoundStart] = []

    with statements_seen(engine) as seen:
        start_round(session, Subscriber, Subscriber.kind == 1, chunk=None, on_progress=told.append)

    written = [one for one in seen if one.startswith("UPDATE round_subscriber ")]
    assert len([one for one in written if "WHERE false" not in one and "0 = 1" not in one]) == 1
    assert not [one for one in seen if one.startswith("SELECT round_subscriber.id")]
    assert told == [RoundStart(1, rows=30, skipped=0)]


def test_chunks_are_bounded_and_told_of(session: Session, start_either: Start) -> None:
    add(session, Subscriber, 7)
    told: list[RoundStart] = []

    start_either(Subscriber, chunk=3, on_progress=told.append)

    assert [(one.round, one.rows, one.skipped) for one in told] == [(1, 3, 0), (1, 6, 0), (1, 7, 0)]


@pytest.mark.parametrize("chunk", [None, 10])
def test_readers_are_not_blocked_and_claimers_pass_over(
    session: Session, other: Session, chunk: int | None, db_alias: str
) -> None:
    add(session, Subscriber, 3)

    start_round(session, Subscriber, chunk=chunk)

    assert state(other) == dict.fromkeys((1, 2, 3), ("unclaimed", 0))
    other.rollback()
    if db_alias != "sqlite":  # one writer at a time
        assert not claim(other, Subscriber, owner="w", limit=3, strategy="skip_locked")
    other.rollback()


def test_it_works_under_autocommit(engine: Engine, session: Session, new_session: Sessions) -> None:
    add(session, Subscriber, 3)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    with new_session(autocommit) as other:
        first = start_round(other, Subscriber, chunk=2)
    second = start_round(autocommit, Subscriber, chunk=2)

    assert (first, second) == (1, 2)
    assert state(session) == dict.fromkeys((1, 2, 3), ("unclaimed", 2))


# -- broken off, and finished by the next call ----------------------------------


def test_a_start_that_was_broken_off_is_finished_by_the_next_call(
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
    assert told[-1] == RoundStart(number, rows=4, skipped=0)  # none that was in it already
    assert round_progress(session, Subscriber) == RoundProgress(
        number, started=True, unclaimed=6, claimed=0, joining=0, done=1, failed=0, cancelled=0
    )
    session.commit()
    assert start_round(engine, Subscriber, Subscriber.kind == 1) == number + 1


@pytest.mark.parametrize("chunks", [1, 3])
def test_it_is_finished_wherever_it_was_broken_off(
    engine: Engine, session: Session, chunks: int
) -> None:
    add(session, Subscriber, 6)
    finish_all(session, Subscriber)

    number = break_off(engine, Subscriber, chunk=2, chunks=chunks)

    assert start_round(engine, Subscriber, chunk=2) == number
    assert state(session) == dict.fromkeys(range(1, 7), ("unclaimed", number))


def test_rows_that_look_forgotten_do_not_make_a_whole_start_a_broken_one(
    engine: Engine, session: Session
) -> None:
    """One that was inserted since, one that is still claimed from before, one of another kind."""
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


def test_the_criteria_are_known_again_with_their_values(engine: Engine, session: Session) -> None:
    add(session, Subscriber, 4)
    names = {f"kind {number}": number for number in range(9)}  # a set of strings has no order
    where = Subscriber.id.in_(set(names.values()))
    broken = break_off(engine, Subscriber, where, chunk=1)

    again = start_round(engine, Subscriber, Subscriber.id.in_(sorted(names.values(), reverse=True)))

    assert again == broken


def test_a_start_in_a_session_is_a_new_round_and_takes_the_rows_of_a_broken_one(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 4)
    broken = break_off(engine, Subscriber, chunk=1)

    number = start_round(session, Subscriber)
    session.commit()

    assert number == broken + 1
    assert state(session) == dict.fromkeys(range(1, 5), ("unclaimed", number))
    assert start_round(engine, Subscriber) == number + 1  # nothing to finish any more


def test_a_start_by_an_engine_stops_where_one_in_a_session_overtakes_it(
    engine: Engine, session: Session
) -> None:
    add(session, Subscriber, 6)
    overtaken: list[int] = []

    def overtake(progress: RoundStart) -> None:
        if not overtaken:
            overtaken.append(start_round(session, Subscriber))
            session.add(Subscriber(id=7))  # what comes later is nobody's
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


def test_rows_that_a_round_alone_has_done_do_not_come_into_it_twice(
    engine: Engine, session: Session
) -> None:
    add(session, Reader, 4)
    number = break_off(engine, Reader, chunk=2)
    # As complete() does.
    session.execute(
        update(Reader).where(Reader.id == 1).values(round=-number)
    )  # as complete() does
    session.commit()

    assert start_round(engine, Reader) == number
    assert list(session.scalars(select(Reader.round).order_by(Reader.id))) == [-1, 1, 1, 1]


# -- two at once ----------------------------------------------------------------


def test_two_starts_by_engines_go_one_after_the_other(engine: Engine, session: Session) -> None:
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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
def test_a_start_in_a_session_overtakes_between_two_chunks_and_never_within_one(
    engine: Engine, session: Session
) -> None:
    """Else what is inserted after its commit would come into the round that was overtaken."""
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_start_whose_lock_is_lost_puts_nothing_in_any_more_and_can_be_finished(
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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


def test_a_round_started_under_working_claimers_is_done_once_by_each_row(
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


# -- all kinds of classes -------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 2])
def test_names_and_words_of_ones_own_and_keys_of_several_columns(
    session: Session, start_either: Start, chunk: int | None
) -> None:
    keys = [(club, number) for club in "abc" for number in range(3)]
    rows = [{"club": club, "number": number} for club, number in keys]
    session.execute(insert(Member), rows)
    session.commit()
    complete(session, claim(session, Member, owner="w", limit=4))
    session.commit()
    told: list[RoundStart] = []

    number = start_either(Member, chunk=chunk, on_progress=told.append)

    assert told[-1] == RoundStart(number, rows=9, skipped=0)
    assert {(row.job_status, row.mailing) for row in session.scalars(select(Member))} == {
        ("unsent", 1)
    }
    claimed = claim(session, Member, Member.mailing == number, owner="w", limit=9)
    assert [(row.club, row.number) for row in claimed] == keys
    session.rollback()


def test_keys_in_the_order_of_the_database(session: Session, start: Start) -> None:
    session.add_all([Badge() for _ in range(9)])
    session.commit()
    told: list[RoundStart] = []

    start(Badge, chunk=2, on_progress=told.append)

    assert told[-1].rows == 9
    assert round_progress(session, Badge).unclaimed == 9


@pytest.mark.parametrize("chunk", [None, 2])
def test_of_a_hierarchy_the_rows_of_the_class_alone(
    session: Session, start: Start, chunk: int | None
) -> None:
    session.add_all([Pet(id=1), Cat(id=2), Cat(id=3)])
    session.commit()

    start(Cat, chunk=chunk)

    assert {id_: round_ for id_, (_, round_) in state(session, Pet).items()} == {1: 0, 2: 1, 3: 1}
    assert round_progress(session, Cat).total == 2


@pytest.mark.parametrize("chunk", [None, 2])
def test_criteria_of_the_sessions_hooks_hold(
    engine: Engine, session: Session, new_session: Sessions, chunk: int | None
) -> None:
    add(session, Subscriber, 3)
    session.execute(update(Subscriber).where(Subscriber.id == 2).values(kind=2))
    session.commit()
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def only_kind_2(state: ORMExecuteState) -> None:
        state.statement = state.statement.options(
            with_loader_criteria(Subscriber, Subscriber.kind == 2)
        )

    start_round(tenant, Subscriber, chunk=chunk)
    counted = round_progress(tenant, Subscriber)
    tenant.commit()

    assert {id_: round_ for id_, (_, round_) in state(session).items()} == {1: 0, 2: 1, 3: 0}
    assert counted.total == 1


@pytest.mark.parametrize("chunk", [None, 2])
def test_rounds_alone_number_the_rows_and_nothing_else(
    session: Session, start_either: Start, chunk: int | None
) -> None:
    add(session, Reader, 5)

    number = start_either(Reader, Reader.id > 1, chunk=chunk)

    found = session.scalars(select(Reader.round).order_by(Reader.id))
    assert list(found) == [0, *[number] * 4]
    assert round_progress(session, Reader).unclaimed == 4
