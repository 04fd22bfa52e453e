"""What a serial key is, and whose jobs count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import JobQueue, complete, fail
from sa_jobqueue.dialects import database_of
from tests.contract.serial.keyed import (
    BY_ACCOUNT,
    NOTES,
    Errand,
    Mail,
    Note,
    Parcel,
    Seat,
    Van,
    Vehicle,
    add,
    ids,
)
from tests.models import Render
from tests.support import Sessions

# What is a key


def test_jobs_without_a_key_are_not_limited(session: Session, other: Session) -> None:
    first, _, *further = add(session, Mail, None, 1, None, None)

    assert BY_ACCOUNT.claim(session, owner="w")[0] is first
    session.commit()
    assert ids(BY_ACCOUNT.claim(other, owner="x", limit=9)[1:]) == ids(further)


def test_jobs_without_a_key_are_found_behind_many_jobs_of_taken_keys(session: Session) -> None:
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


def test_keys_of_several_numbers_are_not_mixed_up(session: Session) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.account_id, Mail.priority))
    add(session, Mail, 1, priority=12)
    add(session, Mail, 11, priority=2)

    assert len(queue.claim(session, owner="w", limit=9)) == 2


def test_a_job_with_a_null_in_its_key_is_found_behind_many_jobs_of_a_taken_key(
    session: Session,
) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.region, Mail.host))
    add(session, Mail, *[1] * 40, region="eu", host="a")
    (last,) = add(session, Mail, 1, region="eu")
    queue.claim(session, owner="w")

    assert ids(queue.claim(session, owner="w", limit=2)) == [last.id]


def test_keys_behind_many_jobs_of_another_key_are_claimed_in_the_order_of_their_first_jobs(
    session: Session,
) -> None:
    add(session, Mail, *[1] * 40)
    BY_ACCOUNT.claim(session, owner="w")
    add(session, Mail, 2, priority=5)
    (sooner,) = add(session, Mail, 3, priority=4)

    assert ids(BY_ACCOUNT.claim(session, owner="w")) == [sooner.id]


def test_the_callers_order_holds_within_a_key(session: Session) -> None:
    queue = JobQueue(Errand, serial_by=Errand.account_id, order_by=Errand.id.desc())
    first, second = add(session, Errand, 1, 1)

    for _ in range(2):
        jobs = queue.claim(session, owner="w", limit=2)
        assert ids(jobs) == [second.id]
        fail(session, jobs, retry_in=timedelta(0))
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
    locks = database_of(session.connection()).serial_key_locks()
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


def test_jobs_that_the_queue_does_not_claim_block_no_key(session: Session) -> None:
    queue = JobQueue(Note, Note.name == "ours", serial_by=Note.account_id)
    add(session, Note, 1, 2, name="theirs")
    ours = add(session, Note, 1, 1, 2, name="ours")

    assert ids(queue.claim(session, owner="w", limit=9)) == ids([ours[0], ours[2]])


def test_delayed_jobs_that_the_queue_does_not_claim_block_no_key(session: Session) -> None:
    add(session, Mail, 1, host="theirs")
    fail(session, BY_ACCOUNT.claim(session, owner="w"), retry_in=timedelta(microseconds=1))
    (ours,) = add(session, Mail, 1, host="ours")

    queue = JobQueue(Mail, Mail.host == "ours", serial_by=Mail.account_id)

    assert ids(queue.claim(session, owner="w", limit=9)) == [ours.id]


def test_jobs_count_as_claimed_by_the_queues_own_word(session: Session) -> None:
    queue = JobQueue(Note, during="sending", serial_by=Note.account_id)
    add(session, Note, 1, 1)

    assert len(queue.claim(session, owner="w", limit=9)) == 1
    assert len(queue.claim(session, owner="w", limit=9)) == 0


def test_a_job_that_its_owner_has_moved_on_keeps_its_key(session: Session) -> None:
    queue = JobQueue(Render, serial_by=Render.frames)
    session.add_all([Render(frames=1), Render(frames=1)])
    session.commit()
    queue.claim(session, owner="w")[0].status = "running"
    session.commit()

    assert len(queue.claim(session, owner="w", limit=9)) == 0


def test_claimed_jobs_count_even_when_they_no_longer_fulfil_the_criteria(session: Session) -> None:
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
    """Else a hidden job would block the jobs behind it forever."""
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


def test_jobs_with_a_composite_primary_key_are_claimed(session: Session) -> None:
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
