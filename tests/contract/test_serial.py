"""serial_by=: at most one claimed job of each key, the oldest first, on every engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    UnsupportedDatabase,
    cancel_claimed,
    claim_statements,
    claimed_by,
    complete,
    enqueue,
    fail,
    release,
    retry,
)
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.dialects import database_of
from sa_jobqueue.verbs.claim import dialect_of
from sa_jobqueue.worker import Worker
from tests.support import impatient, statements_seen

from .asyncio_support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
)
from .keyed import (
    BY_ACCOUNT,
    NOTES,
    SERVERS,
    THREE_EACH,
    Errand,
    Mail,
    Note,
    Parcel,
    Seat,
    Sending,
    Van,
    Vehicle,
    add,
    claimed,
    consume,
    emptied,
    ids,
    locked_keys,
    run,
)
from .test_interleaved import unless_refused

Sessions = Callable[..., Session]

HOUR = timedelta(hours=1)

BOTH = pytest.mark.parametrize("queue", [BY_ACCOUNT, NOTES], ids=["every mixin", "plain"])


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with the tables of this test, which are empty."""
    return emptied(shared_engine)


# One at a time, in their order


@BOTH
def test_a_claim_takes_the_oldest_job_of_each_key(session: Session, queue: JobQueue[Any]) -> None:
    a, b, c, _, d = add(session, queue.entity, 1, 1, 2, 2, 3)

    jobs = queue.claim(session, owner="w", limit=10)

    assert ids(jobs) == ids([a, c, d])
    assert [job.status for job in jobs] == ["claimed"] * 3
    assert b.status == "unclaimed"


@BOTH
def test_a_key_is_taken_until_its_job_is_finished(
    session: Session, other: Session, queue: JobQueue[Any]
) -> None:
    first, second = add(session, queue.entity, 1, 1)
    jobs = queue.claim(session, owner="w", limit=2)
    session.commit()

    assert ids(queue.claim(other, owner="x", limit=2)) == []
    other.commit()
    queue.complete(session, jobs)
    session.commit()

    assert ids(jobs) == [first.id]
    assert ids(queue.claim(other, owner="x", limit=2)) == [second.id]


def fail_for_good(session: Session, job: Mail) -> None:
    session.execute(update(Mail).where(Mail.id == job.id).values(max_attempts=1))
    fail(session, job, error="broken")


def lose(session: Session, job: Mail) -> None:
    """The job's owner is gone, and the row with it."""
    session.execute(delete(Mail).where(Mail.id == job.id))


@pytest.mark.parametrize("end", [complete, fail_for_good, cancel_claimed, lose])
def test_a_job_that_ends_frees_its_key_at_once(
    session: Session, other: Session, end: Callable[..., None]
) -> None:
    _, second = add(session, Mail, 1, 1)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    session.commit()

    end(session, job)
    session.commit()

    assert ids(BY_ACCOUNT.claim(other, owner="x")) == [second.id]


def reap_at_once(session: Session, job: Mail) -> None:
    aged = datetime.now(UTC) - HOUR
    session.execute(update(Mail).where(Mail.id == job.id).values(owner_date=aged))
    assert len(BY_ACCOUNT.reap(session)) == 1


@pytest.mark.parametrize("end", [release, fail, reap_at_once])
def test_a_job_that_comes_back_is_the_next_of_its_key(
    session: Session, other: Session, end: Callable[..., None]
) -> None:
    first, _ = add(session, Mail, 1, 1)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    session.commit()

    end(session, job)
    session.commit()

    assert ids(BY_ACCOUNT.claim(other, owner="x", limit=2)) == [first.id]


def test_a_job_brought_back_from_failed_waits_for_its_turn(session: Session) -> None:
    first, second = add(session, Mail, 1, 1, max_attempts=1)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job)
    BY_ACCOUNT.claim(session, owner="w")
    retry(session, first)
    session.commit()

    assert ids(BY_ACCOUNT.claim(session, owner="w")) == []
    complete(session, claimed_by(session, Mail, "w"))
    assert ids(BY_ACCOUNT.claim(session, owner="w")) == [first.id]
    assert second.status == "done"


@pytest.mark.only_on(*SERVERS)
def test_a_sooner_job_inserted_between_two_claimers_waits_for_its_key(
    session: Session, other: Session, new_session: Sessions
) -> None:
    """The test of the trap: the head of the key changes while its claim is not committed."""
    add(session, Mail, 1)
    jobs = BY_ACCOUNT.claim(session, owner="a")
    third = new_session()
    (sooner,) = add(third, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    session.commit()
    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    BY_ACCOUNT.complete(session, jobs)
    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    session.commit()

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == [sooner.id]


@pytest.mark.only_on(*SERVERS)
def test_a_claim_that_is_rolled_back_frees_its_key(session: Session, other: Session) -> None:
    first, _ = add(session, Mail, 1, 1)
    BY_ACCOUNT.claim(session, owner="a")
    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.rollback()

    session.rollback()

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == [first.id]


@pytest.mark.only_on(*SERVERS)
def test_keys_that_others_are_claiming_from_are_passed_over(
    session: Session, other: Session
) -> None:
    *_, last = add(session, Mail, *[1] * 40, 2)
    BY_ACCOUNT.claim(session, owner="a")

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == [last.id]


@pytest.mark.only_on(*SERVERS)
def test_a_claim_tells_how_many_jobs_it_lost_to_others(session: Session, other: Session) -> None:
    add(session, Mail, 1, 2)
    BY_ACCOUNT.claim(session, owner="a")

    claim = BY_ACCOUNT.claim(other, owner="b")

    assert (len(claim), claim.candidates, claim.lost) == (1, 2, 1)


@pytest.mark.only_on(*SERVERS)
def test_a_claim_of_keys_that_are_all_taken_does_not_try_again(
    engine: Engine, session: Session, other: Session
) -> None:
    """Nor does it wait: of such a key there is one claim at a time."""
    add(session, Mail, 1, 1)
    BY_ACCOUNT.claim(session, owner="a")

    with statements_seen(engine) as seen:
        assert ids(BY_ACCOUNT.claim(other, owner="b")) == []

    assert len([one for one in seen if "claim_tried" in one]) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_job_whose_row_is_locked_keeps_its_key_and_no_other(
    session: Session, other: Session
) -> None:
    first, _, elsewhere = add(session, Mail, 1, 1, 2)
    session.execute(update(Mail).where(Mail.id == first.id).values(host="edited"))

    assert ids(BY_ACCOUNT.claim(other, owner="w")) == [elsewhere.id]


#: More than a claim has; those that it does not reach are not taken.
STATEMENTS = 12


@contextmanager
def before_statement(session: Session, number: int, step: Callable[[], None]) -> Iterator[None]:
    """Take a step right before a statement of a session's transaction."""
    seen: list[str] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        seen.append(statement)
        if len(seen) == number + 1:
            step()

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", see)
    yield
    event.remove(connection, "before_cursor_execute", see)


def overtake(session: Session, queue: JobQueue[Any], *, finish: bool) -> Callable[[], None]:
    """Insert a sooner job, claim what is to be had, and finish it, or not; commit each."""

    def step() -> None:
        sooner = {"priority": -1} if queue is BY_ACCOUNT else {"id": -1}
        session.add(queue.entity(account_id=1, **sooner))
        session.commit()
        jobs = queue.claim(session, owner="b")
        session.commit()
        if finish:
            queue.complete(session, jobs)
            session.commit()

    return step


@BOTH
@pytest.mark.parametrize("number", range(STATEMENTS))
@pytest.mark.parametrize("finish", [False, True], ids=["claims", "finishes"])
def test_no_step_between_two_statements_gives_a_key_twice(
    engine: Engine, new_session: Sessions, queue: JobQueue[Any], number: int, finish: bool
) -> None:
    session = new_session()
    add(session, queue.entity, 1, 1)
    other = new_session(impatient(engine))
    step = unless_refused(overtake(other, queue, finish=finish), other)

    with before_statement(session, number, step):
        jobs = queue.claim(session, owner="a", limit=2)
        session.commit()

    assert len(jobs) <= 1
    now = sum(claimed(session, queue.entity).values())
    assert now <= 1
    assert finish or now == 1


# Retries


def test_a_job_that_waits_for_its_retry_keeps_its_key(session: Session) -> None:
    _, _, elsewhere = add(session, Mail, 1, 1, 2)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job, retry_in=HOUR)
    add(session, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == [elsewhere.id]


def test_a_job_whose_retry_is_due_comes_before_the_others_of_its_key(session: Session) -> None:
    first, *_ = add(session, Mail, 1, *[1] * 30)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job, retry_in=timedelta(microseconds=1))
    add(session, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == [first.id]


def test_others_of_the_key_go_on_where_retries_are_skipped(session: Session) -> None:
    skipping = JobQueue(Mail, serial_by=Mail.account_id, on_retry="skip")
    first, second, third = add(session, Mail, 1, 1, 1)
    (job,) = skipping.claim(session, owner="w")
    fail(session, job, retry_in=HOUR)
    session.commit()

    (job,) = skipping.claim(session, owner="w", limit=9)
    assert job is second
    session.execute(update(Mail).where(Mail.id == first.id).values(run_at=datetime.now(UTC)))
    complete(session, job)
    assert ids(skipping.claim(session, owner="w", limit=9)) == [first.id]
    assert third.status == "unclaimed"


def test_without_a_schedule_a_failed_job_is_at_once_the_next_of_its_key(session: Session) -> None:
    queue = JobQueue(Errand, serial_by=Errand.account_id)
    first, second = add(session, Errand, 1, 1)
    fail(session, queue.claim(session, owner="w"))
    session.commit()

    jobs = queue.claim(session, owner="w", limit=2)

    assert ids(jobs) == [first.id]
    complete(session, jobs)
    assert ids(queue.claim(session, owner="w")) == [second.id]


def test_a_job_for_later_that_was_never_tried_keeps_nobody_waiting(session: Session) -> None:
    add(session, Mail, 1, priority=-1, run_at=datetime.now(UTC) + HOUR)
    (due,) = add(session, Mail, 1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=2)) == [due.id]


# What is a key


def test_jobs_without_a_key_are_not_limited(session: Session, other: Session) -> None:
    first, _, *further = add(session, Mail, None, 1, None, None)

    assert BY_ACCOUNT.claim(session, owner="w")[0] is first
    session.commit()
    assert ids(BY_ACCOUNT.claim(other, owner="x", limit=9)[1:]) == ids(further)


def test_jobs_without_a_key_are_found_behind_many_whose_keys_are_taken(session: Session) -> None:
    add(session, Mail, *[1] * 40, *[2] * 40)
    *_, last = add(session, Mail, *[1] * 40, None)
    BY_ACCOUNT.claim(session, owner="w", limit=2)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=2)) == [last.id]


def test_several_columns_are_one_key(session: Session) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.region, Mail.host))
    places = [("eu", "a"), ("eu", "b"), ("us", "a"), ("eu", "a"), ("eu", None), ("eu", None)]
    for region, host in places:
        add(session, Mail, 1, region=region, host=host)

    jobs = queue.claim(session, owner="w", limit=9)

    assert [(job.region, job.host) for job in jobs] == [*places[:3], *places[4:]]


def test_numbers_that_make_a_key_are_not_run_together(session: Session) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.account_id, Mail.priority))
    add(session, Mail, 1, priority=12)
    add(session, Mail, 11, priority=2)

    assert len(queue.claim(session, owner="w", limit=9)) == 2


def test_a_job_with_half_a_key_is_found_behind_many_whose_key_is_taken(session: Session) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.region, Mail.host))
    add(session, Mail, *[1] * 40, region="eu", host="a")
    (last,) = add(session, Mail, 1, region="eu")
    queue.claim(session, owner="w")

    assert ids(queue.claim(session, owner="w", limit=2)) == [last.id]


def test_keys_behind_many_jobs_of_another_one_go_by_their_first_jobs(session: Session) -> None:
    add(session, Mail, *[1] * 40)
    BY_ACCOUNT.claim(session, owner="w")
    add(session, Mail, 2, priority=5)
    (sooner,) = add(session, Mail, 3, priority=4)

    assert ids(BY_ACCOUNT.claim(session, owner="w")) == [sooner.id]


def test_an_order_of_ones_own_is_that_of_a_key_too(session: Session) -> None:
    queue = JobQueue(Errand, serial_by=Errand.account_id, order_by=Errand.id.desc())
    first, second = add(session, Errand, 1, 1)

    for _ in range(2):
        jobs = queue.claim(session, owner="w", limit=2)
        assert ids(jobs) == [second.id]
        fail(session, jobs)
    complete(session, queue.claim(session, owner="w"))
    assert ids(queue.claim(session, owner="w")) == [first.id]


@pytest.mark.only_on("mysql", "mariadb")
def test_values_that_the_server_takes_for_equal_are_one_key(
    session: Session, other: Session, new_session: Sessions
) -> None:
    queue = JobQueue(Mail, serial_by=Mail.region)
    first, _ = [mail for region in ("é", "E") for mail in add(session, Mail, 1, region=region)]

    assert ids(queue.claim(session, owner="w", limit=9)) == [first.id]
    add(new_session(), Mail, 1, region="e", priority=-1)
    assert ids(queue.claim(other, owner="x", limit=9)) == []


def test_a_key_is_one_of_its_table_and_of_its_columns_in_any_order(
    engine: Engine, session: Session
) -> None:
    locks = database_of(session.connection()).key_locks()
    assert locks is not None
    add(session, Mail, 1, region="1", host="2")
    add(session, Mail, 1, region="x", host="x")
    add(session, Note, 1)

    def token(*columns: Any, of: int = 0) -> Any:
        (table,) = {column.property.parent.local_table for column in columns}
        named = select(locks.token(table, columns)).order_by(table.c.id).offset(of).limit(1)
        return session.scalar(named)

    assert token(Mail.region, Mail.host) == token(Mail.host, Mail.region) is not None
    if engine.dialect.name != "sqlite":
        assert token(Mail.account_id) != token(Note.account_id)
        assert token(Mail.region, of=1) != token(Mail.host, of=1)


# Whose jobs count


def test_jobs_that_the_queue_does_not_claim_keep_nobody_waiting(session: Session) -> None:
    queue = JobQueue(Note, Note.name == "ours", serial_by=Note.account_id)
    add(session, Note, 1, 2, name="theirs")
    ours = add(session, Note, 1, 1, 2, name="ours")

    assert ids(queue.claim(session, owner="w", limit=9)) == ids([ours[0], ours[2]])


def test_retries_that_the_queue_does_not_claim_keep_nobody_waiting(session: Session) -> None:
    add(session, Mail, 1, host="theirs")
    fail(session, BY_ACCOUNT.claim(session, owner="w"), retry_in=timedelta(microseconds=1))
    (ours,) = add(session, Mail, 1, host="ours")

    queue = JobQueue(Mail, Mail.host == "ours", serial_by=Mail.account_id)

    assert ids(queue.claim(session, owner="w", limit=9)) == [ours.id]


def test_claimed_jobs_count_in_the_queues_own_word(session: Session) -> None:
    queue = JobQueue(Note, during="sending", serial_by=Note.account_id)
    add(session, Note, 1, 1)

    assert len(queue.claim(session, owner="w", limit=9)) == 1
    assert len(queue.claim(session, owner="w", limit=9)) == 0


def test_claimed_jobs_count_whatever_they_have_become(session: Session) -> None:
    queue = JobQueue(Note, Note.name == "ours", serial_by=Note.account_id)
    add(session, Note, 1, 1, name="ours")
    (job,) = queue.claim(session, owner="w")
    job.name = "theirs by now"
    session.commit()

    assert ids(queue.claim(session, owner="w", limit=9)) == []


def test_queues_that_the_equality_columns_tell_apart_do_not_count_each_others(
    session: Session,
) -> None:
    red, blue = (
        JobQueue(Parcel, Parcel.color == color, serial_by=Parcel.account_id)
        for color in ("red", "blue")
    )
    for color in ("red", "red", "blue", "blue"):
        add(session, Parcel, *[1] * 20, color=color)

    assert len(red.claim(session, owner="w", limit=9)) == 1
    assert len(red.claim(session, owner="w", limit=9)) == 0
    assert [job.color for job in blue.claim(session, owner="w", limit=9)] == ["blue"]


def test_the_criteria_of_a_sessions_hooks_hold(session: Session) -> None:
    """Else a job that they hide would keep those behind it waiting for ever."""
    add(session, Note, 1, *[2] * 40, gone=True)
    here = add(session, Note, 1, 1, 2)

    @event.listens_for(session, "do_orm_execute")
    def here_only(state: ORMExecuteState) -> None:
        criteria = with_loader_criteria(Note, Note.gone.is_(False))
        state.statement = state.statement.options(criteria)

    assert ids(NOTES.claim(session, owner="w", limit=9)) == ids([here[0], here[2]])


def test_a_job_that_hooks_hide_is_no_head_of_its_key(session: Session) -> None:
    add(session, Mail, 2, host="gone")
    first, *_ = add(session, Mail, *[1] * 40, host="here")
    (last,) = add(session, Mail, 2, host="here")

    @event.listens_for(session, "do_orm_execute")
    def here_only(state: ORMExecuteState) -> None:
        criteria = with_loader_criteria(Mail, Mail.host == "here")
        state.statement = state.statement.options(criteria)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == ids([first, last])


def test_classes_of_one_table_share_its_keys(session: Session) -> None:
    for entity in (Van, Vehicle):
        add(session, entity, 1, 2)

    vans = JobQueue(Van, serial_by=Van.account_id).claim(session, owner="w")
    all_of_them = JobQueue(Vehicle, serial_by=Vehicle.account_id)

    assert [(type(van), van.account_id) for van in vans] == [(Van, 1)]
    assert [job.account_id for job in all_of_them.claim(session, owner="w", limit=9)] == [2]


def test_a_composite_primary_key_does_as_well(session: Session) -> None:
    queue = JobQueue(Seat, serial_by=Seat.account_id)
    for row, seat in [(1, "b"), (1, "a"), (2, "a")]:
        add(session, Seat, row % 2, row=row, seat=seat)

    jobs = queue.claim(session, owner="w", limit=9)

    assert [(job.row, job.seat) for job in jobs] == [(1, "a"), (2, "a")]


# In one transaction


def test_a_turn_finishes_a_job_and_claims_the_next_of_its_key(session: Session) -> None:
    _, second = add(session, Mail, 1, 1)
    jobs = BY_ACCOUNT.claim(session, owner="w")
    session.commit()

    jobs = BY_ACCOUNT.turn(session, jobs, owner="w")
    session.commit()

    assert ids(jobs) == [second.id]


def test_a_second_claim_of_the_transaction_counts_the_first(session: Session) -> None:
    add(session, Mail, 1, 1, 2)

    assert len(BY_ACCOUNT.claim(session, owner="w")) == 1
    assert [job.account_id for job in BY_ACCOUNT.claim(session, owner="w", limit=9)] == [2]
    assert len(BY_ACCOUNT.claim(session, owner="w", limit=9)) == 0


def test_a_claim_in_a_savepoint_that_is_rolled_back_is_undone(
    session: Session, other: Session
) -> None:
    first, _ = add(session, Mail, 1, 1)
    with session.begin():
        with session.begin_nested() as savepoint:
            BY_ACCOUNT.claim(session, owner="w")
            savepoint.rollback()
        assert ids(BY_ACCOUNT.claim(session, owner="w")) == [first.id]
    assert ids(BY_ACCOUNT.claim(other, owner="x")) == []


# The locks of keys


def end_with_error(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError


def end_by_commit_in_sql(session: Session) -> None:
    session.execute(text("COMMIT"))
    session.close()


def end_by_finish(session: Session) -> None:
    complete(session, claimed_by(session, Mail, "w"))
    session.commit()


ENDS = [Session.commit, Session.rollback, Session.close, end_with_error, end_by_finish]


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("end", [*ENDS, end_by_commit_in_sql])
def test_the_locks_of_keys_end_with_the_transaction(
    engine: Engine, session: Session, end: Callable[[Session], None]
) -> None:
    add(session, Mail, 1, 1, 2, 3)
    BY_ACCOUNT.claim(session, owner="w", limit=2)
    BY_ACCOUNT.claim(session, owner="w", limit=1)
    assert locked_keys(engine, BY_ACCOUNT) == 3

    end(session)

    assert locked_keys(engine, BY_ACCOUNT) == 0


@pytest.mark.only_on(*SERVERS)
def test_a_key_that_is_claimed_from_twice_is_freed_as_well(
    engine: Engine, session: Session
) -> None:
    """The lock is counted by the server, and one that was taken twice is given back twice."""
    add(session, Mail, 1, 1)
    for _ in range(2):
        assert len(THREE_EACH.claim(session, owner="w")) == 1

    session.commit()

    assert locked_keys(engine, THREE_EACH) == 0


@pytest.mark.only_on(*SERVERS)
def test_no_more_keys_are_locked_than_jobs_are_wanted(engine: Engine, session: Session) -> None:
    add(session, Mail, *range(20), *range(20))

    BY_ACCOUNT.claim(session, owner="w", limit=3)

    assert locked_keys(engine, BY_ACCOUNT) == 3


@pytest.mark.only_on("mysql", "mariadb")
def test_more_keys_than_one_statement_takes_are_locked_and_freed(
    engine: Engine, session: Session
) -> None:
    enqueue(session, Mail, [{"account_id": number} for number in range(201)])

    assert len(BY_ACCOUNT.claim(session, owner="w", limit=201)) == 201
    session.commit()

    assert locked_keys(engine, BY_ACCOUNT) == 0


@pytest.mark.only_on(*SERVERS)
def test_a_statement_that_fails_leaves_no_lock(engine: Engine, session: Session) -> None:
    add(session, Mail, 1)
    with before_statement(session, 99, lambda: None):

        @event.listens_for(session.connection(), "before_cursor_execute")
        def refuse(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
            if statement.lstrip().startswith("UPDATE"):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            BY_ACCOUNT.claim(session, owner="w")
    assert locked_keys(engine, BY_ACCOUNT) == 1

    session.rollback()

    assert locked_keys(engine, BY_ACCOUNT) == 0


@pytest.mark.only_on(*SERVERS)
def test_a_connection_that_is_dropped_leaves_no_lock(engine: Engine, session: Session) -> None:
    add(session, Mail, 1)
    connection = engine.connect()
    BY_ACCOUNT.claim_rows(connection, owner="w")
    assert locked_keys(engine, BY_ACCOUNT) == 1

    del connection
    gc.collect()

    assert locked_keys(engine, BY_ACCOUNT) == 0
    assert engine.pool.checkedin() > 0  # type: ignore[attr-defined]  # a QueuePool counts


@pytest.mark.only_on("mysql", "mariadb")
def test_keys_are_locked_until_the_commit_is_done(engine: Engine, session: Session) -> None:
    add(session, Mail, 1)
    BY_ACCOUNT.claim(session, owner="w")
    driver: Any = session.connection().connection.dbapi_connection
    commit, locked = driver.commit, []

    def watched() -> None:
        locked.append(locked_keys(engine, BY_ACCOUNT))
        commit()
        locked.append(locked_keys(engine, BY_ACCOUNT))

    driver.commit = watched
    session.commit()
    del driver.commit

    assert [*locked, locked_keys(engine, BY_ACCOUNT)] == [1, 1, 0]


@pytest.mark.only_on("mysql", "mariadb")
def test_keys_that_could_not_be_freed_are_freed_later(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The COMMIT has been: an error would look as if that had failed."""
    add(session, Mail, 1, 1)
    with engine.connect() as connection, Session(connection) as bound:
        (job,) = BY_ACCOUNT.claim(bound, owner="w")
        driver: Any = connection.connection.dbapi_connection
        error, commit = engine.dialect.loaded_dbapi.OperationalError, driver.commit

        def refuse(*_: Any) -> None:
            raise error("cancelled")

        def broken() -> None:
            commit()
            driver.cursor = refuse

        driver.commit = broken
        bound.commit()
        connection.commit()
        del driver.commit, driver.cursor
        assert "could not be freed: cancelled" in caplog.text
        assert locked_keys(engine, BY_ACCOUNT) == 1

        complete(bound, job)
        bound.commit()
        connection.commit()
        assert locked_keys(engine, BY_ACCOUNT) == 0
        assert len(BY_ACCOUNT.claim(bound, owner="w")) == 1


def test_hundreds_of_claims_over_a_pool_leave_no_lock(
    engine: Engine, session: Session, full: bool
) -> None:
    add(session, Mail, *range(20))
    for number in range(1_000 if full else 100):
        with Session(engine) as one, one.begin():
            jobs = BY_ACCOUNT.claim(one, owner="w", limit=1 + number % 3)
            release(one, jobs)
            if number % 5 == 0:
                one.rollback()

    assert locked_keys(engine, BY_ACCOUNT) == 0
    assert sum(claimed(session).values()) == 0


# Refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serial_by": "account_id"}, "takes attributes of Mail"),
        ({"serial_by": Note.account_id}, "takes attributes of Mail"),
        ({"serial_by": ()}, "names no column"),
        ({"limit_by": Mail.account_id}, "takes a dict"),
        ({"limit_by": {}}, "takes a dict"),
        ({"limit_by": {Mail.account_id: 0}}, "at least 1"),
        ({"limit_by": {Mail.account_id: True}}, "at least 1"),
        ({"serial_by": Mail.account_id, "on_retry": "never"}, "is 'wait' or 'skip'"),
        ({"limit_by": {Mail.account_id: 2}, "on_retry": "skip"}, "without serial_by="),
        ({"serial_by": Mail.account_id, "strategy": "held"}, "leave strategy='held' out"),
        ({"serial_by": Mail.account_id, "strict_order": True}, "leave strict_order=True out"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        JobQueue(Mail, **options)


def test_retries_are_skipped_only_where_jobs_wait_for_them() -> None:
    with pytest.raises(ArgumentError, match="add RetryMixin and ScheduleMixin"):
        JobQueue(Note, serial_by=Note.account_id, on_retry="skip")


def test_a_connection_that_commits_by_itself_is_refused(engine: Engine) -> None:
    with (
        Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session,
        pytest.raises(UnsupportedDatabase, match="without AUTOCOMMIT"),
    ):
        BY_ACCOUNT.claim(session, owner="w")


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_would_not_see_the_second_look_is_refused(
    engine: Engine, level: str
) -> None:
    with Session(engine.execution_options(isolation_level=level)) as session:
        add(session, Mail, 1)
        session.execute(select(Mail.id)).all()

        with pytest.raises(UnsupportedDatabase, match="begin the transaction as READ COMMITTED"):
            BY_ACCOUNT.claim(session, owner="w")


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_servers_without_skip_locked_are_refused(name: str) -> None:
    dialect = dialect_of(name)
    dialect.server_version_info = (5, 7) if name == "mysql" else (10, 5)
    vars(dialect)["_mariadb_normalized_version_info"] = (10, 5)

    with pytest.raises(UnsupportedDatabase, match="cannot keep serial_by="):
        claim_statements(BY_ACCOUNT, dialect=dialect)


def test_candidates_from_elsewhere_are_refused(session: Session, other: Session) -> None:
    with pytest.raises(ArgumentError, match="candidates_from="):
        BY_ACCOUNT.claim(session, owner="w", candidates_from=other)


# Its face


def test_a_queue_says_its_limits() -> None:
    queue = JobQueue(
        Mail,
        serial_by=Mail.account_id,
        limit_by={(Mail.region, Mail.host): 3},
        on_retry="skip",
    )

    assert repr(queue) == (
        "<JobQueue Mail, strategy='auto', serial_by=account_id, "
        "limit_by={(region, host): 3}, on_retry='skip'>"
    )


def test_the_statements_shown_are_those_that_run(engine: Engine, session: Session) -> None:
    add(session, Mail, 1)
    with statements_seen(engine) as seen:
        BY_ACCOUNT.claim(session, owner="w")

    dialect = session.connection().dialect
    for statement in claim_statements(BY_ACCOUNT, dialect=dialect):
        shown = " ".join(str(statement.compile(dialect=dialect)).split())  # type: ignore[attr-defined]  # all can
        beginning = shown.partition("'sa_jobqueue:")[0][:40]
        assert any(one.startswith(beginning) for one in seen), shown


def test_rows_are_claimed_too(engine: Engine, session: Session) -> None:
    first, _, third = add(session, Mail, 1, 1, 2)
    with engine.connect() as connection:
        rows = BY_ACCOUNT.claim_rows(connection, owner="w", limit=9)
        assert [row.id for row in rows] == ids([first, third])
        BY_ACCOUNT.complete(connection, rows)
        connection.commit()

    assert [row.status for row in rows] == ["claimed"] * 2
    assert sum(claimed(session).values()) == 0


def test_a_worker_works_key_by_key(engine: Engine, session: Session) -> None:
    jobs = add(session, Mail, 1, 1, 2, 1, None)
    handled: list[int] = []
    failed: list[int] = []

    def handle(mail: Mail) -> None:
        if mail.id == jobs[0].id and not failed:
            failed.append(mail.id)
            raise ZeroDivisionError
        handled.append(mail.id)

    worker = Worker(
        engine,
        BY_ACCOUNT,
        handle,
        owner="w",
        limit=3,
        drain=True,
        poll=timedelta(milliseconds=5),
        backoff=lambda attempts: timedelta(milliseconds=1),
    )
    worker.run()

    assert failed == [jobs[0].id]
    assert [number for number in handled if number in ids([jobs[0], jobs[1], jobs[3]])] == ids(
        [jobs[0], jobs[1], jobs[3]]
    )
    assert sorted(handled) == ids(jobs)


@pytest.mark.parametrize("driver", DRIVERS_OF_INNODB + DRIVERS_OF_POSTGRESQL + DRIVERS_OF_SQLITE)
@in_event_loop
async def test_an_async_session_claims_and_frees_keys(engine: Engine, driver: str) -> None:
    with Session(engine) as session:
        add(session, Mail, 1, 1, 2)
    queue = AsyncJobQueue(BY_ACCOUNT)
    async_engine = make_async_engine(engine.url, driver)

    async with AsyncSession(async_engine) as session:
        jobs = await queue.claim(session, owner="w", limit=9)
        assert [job.account_id for job in jobs] == [1, 2]
        if driver != "aiosqlite":
            assert locked_keys(engine, BY_ACCOUNT) == 2
        await session.commit()

        assert locked_keys(engine, BY_ACCOUNT) == 0
        assert not await queue.claim(session, owner="w", limit=9)
        await session.rollback()
    await async_engine.dispose()


# Many processes


@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_finish_each_key_in_the_order_of_its_jobs(
    engine: Engine, session: Session, limit: int, full: bool
) -> None:
    jobs, keys, consumers = (5_000, 50, 10) if full else (120, 12, 3)
    enqueue(session, Mail, [{"account_id": number * 7 % keys} for number in range(jobs)])
    session.commit()

    run(consume, [(url_of(engine), limit, seed) for seed in range(consumers)])

    lines = session.scalars(select(Sending).order_by(Sending.account_id, Sending.id)).all()
    finished = 0
    for account, of_account in groupby(lines, lambda line: line.account_id):
        steps = [(line.job, line.finished) for line in of_account]
        in_order = list(session.scalars(of_key(account)))
        # Each claim is followed by its own finish: never two at once. A job that failed
        # comes again before any other.
        assert [done for _, done in steps] == [False, True] * (len(steps) // 2)
        assert [job for job, _ in steps[::2]] == [job for job, _ in steps[1::2]]
        assert [job for job, _ in groupby(job for job, _ in steps)] == in_order
        finished += len(in_order)
    assert finished == jobs
    assert len({line.process for line in lines}) > 1 or not full  # a few jobs may be one's alone
    assert locked_keys(engine, BY_ACCOUNT) == 0


def of_key(account: int) -> Any:
    return select(Mail.id).where(Mail.account_id == account).order_by(Mail.id)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)
