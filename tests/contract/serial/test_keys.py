"""What a serial key is, and whose jobs count."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, complete, fail
from tests.contract.serial.keyed import BY_ACCOUNT, NOTES, Mail, Note, add, ids
from tests.models import Message, Render
from tests.support import SERVERS, Sessions, only_seeing

# What is a key


def test_several_columns_are_one_key(session: Session) -> None:
    queue = JobQueue(Mail, serial_by=(Mail.region, Mail.host))
    places = [("eu", "a"), ("eu", "b"), ("us", "a"), ("eu", "a"), ("eu", None), ("eu", None)]
    for region, host in places:
        add(session, Mail, 1, region=region, host=host)

    jobs = queue.claim(session, owner="w", limit=9)

    assert [(job.region, job.host) for job in jobs] == [*places[:3], *places[4:]]
    by_numbers = JobQueue(Mail, serial_by=(Mail.account_id, Mail.priority))
    add(session, Mail, 1, priority=12)
    add(session, Mail, 11, priority=2)
    assert len(by_numbers.claim(session, owner="w", limit=9)) == 2  # 1, 12 is not 11, 2


def test_keys_behind_many_jobs_of_another_key_are_claimed_in_the_order_of_their_first_jobs(
    session: Session,
) -> None:
    add(session, Mail, *[1] * 40)
    BY_ACCOUNT.claim(session, owner="w")
    add(session, Mail, 2, priority=5)
    (sooner,) = add(session, Mail, 3, priority=4)

    assert ids(BY_ACCOUNT.claim(session, owner="w")) == [sooner.id]


def test_the_callers_order_holds_within_a_key(session: Session) -> None:
    queue = JobQueue(Render, serial_by=Render.frames, order_by=Render.id.desc())
    session.add_all([Render(id=1, frames=1), Render(id=2, frames=1)])
    session.commit()

    for _ in range(2):
        jobs = queue.claim(session, owner="w", limit=2)
        assert ids(jobs) == [2]
        fail(session, jobs, retry_in=timedelta(0))
    complete(session, queue.claim(session, owner="w"))
    assert ids(queue.claim(session, owner="w")) == [1]


@pytest.mark.only_on("mysql", "mariadb")
def test_values_that_the_server_takes_for_equal_are_one_key(
    session: Session, other: Session, new_session: Sessions
) -> None:
    queue = JobQueue(Mail, serial_by=Mail.region)
    first, _ = [mail for region in ("é", "E") for mail in add(session, Mail, 1, region=region)]

    assert ids(queue.claim(session, owner="w", limit=9)) == [first.id]
    add(new_session(), Mail, 1, region="e", priority=-1)
    assert ids(queue.claim(other, owner="x", limit=9)) == []


@pytest.mark.only_on(*SERVERS)
def test_a_key_is_one_of_its_table_and_of_its_columns_in_any_order(
    session: Session, other: Session, new_session: Sessions
) -> None:
    add(session, Mail, 1, region="eu", host="a")
    JobQueue(Mail, serial_by=(Mail.region, Mail.host)).claim(session, owner="w")
    third = new_session()
    add(third, Mail, 1, region="eu", host="a", priority=-1)
    (elsewhere,) = add(third, Mail, 1, region="a", host="eu")
    (note,) = add(third, Note, 1)

    queue = JobQueue(Mail, serial_by=(Mail.host, Mail.region))
    assert ids(queue.claim(other, owner="x", limit=9)) == [elsewhere.id]
    other.rollback()
    BY_ACCOUNT.claim(third, owner="y")
    assert ids(NOTES.claim(other, owner="x")) == [note.id]


# Whose jobs count


@pytest.mark.parametrize("by", ["criteria", "hook"])
def test_jobs_that_the_queue_or_its_session_does_not_see_block_no_key(
    session: Session, by: str
) -> None:
    ours = Mail.host == "ours"
    queue = JobQueue(Mail, *([ours] if by == "criteria" else []), serial_by=Mail.account_id)
    add(session, Mail, 1, host="theirs")
    fail(session, BY_ACCOUNT.claim(session, owner="w"), retry_in=timedelta(microseconds=1))
    add(session, Mail, *[2] * 40, host="theirs")
    here = add(session, Mail, 1, 1, 2, host="ours")
    if by == "hook":
        only_seeing(session, Mail, ours)

    assert ids(queue.claim(session, owner="w", limit=9)) == ids([here[0], here[2]])


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
    sms, fax = (
        JobQueue(Message, Message.channel == channel, serial_by=Message.sequence)
        for channel in ("sms", "fax")
    )
    session.add_all([Message(channel=channel, sequence=1) for channel in ["sms", "fax"] * 20])
    session.commit()

    assert len(sms.claim(session, owner="w", limit=9)) == 1
    assert len(sms.claim(session, owner="w", limit=9)) == 0
    assert [job.channel for job in fax.claim(session, owner="w", limit=9)] == ["fax"]


# In one transaction


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
