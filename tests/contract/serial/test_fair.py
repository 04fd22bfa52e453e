"""fair_by=: keys that have due jobs take turns, so that the backlog of one holds up no other."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, fail
from sa_jobqueue.worker import Worker
from tests.contract.serial.keyed import Mail, Note, add, ids
from tests.contract.serial.test_costs import crowded, read
from tests.support import SERVERS, only_seeing, statements_seen

__all__ = ["crowded"]


def fair(*where: Any, by: Any = Mail.account_id) -> JobQueue[Mail]:
    """Return a queue that has served no key yet."""
    return JobQueue(Mail, *where, fair_by=by)


def accounts(jobs: Any) -> list[int | None]:
    return [job.account_id for job in jobs]


def one_by_one(queue: JobQueue[Mail], session: Session, count: int) -> list[int | None]:
    return [each for _ in range(count) for each in accounts(queue.claim(session, owner="w"))]


def test_keys_take_turns_whatever_the_backlog_of_one(session: Session) -> None:
    add(session, Mail, *[1] * 9, 3, 2, 2)

    assert one_by_one(fair(), session, 13) == [1, 2, 3, 1, 2, *[1] * 7]


def test_a_batch_takes_from_each_key_in_turn_and_goes_on_behind_the_last(session: Session) -> None:
    queue = fair()
    jobs = add(session, Mail, *[1] * 30, *[2] * 3, 3, 4)

    assert Counter(accounts(queue.claim(session, owner="w", limit=6))) == {1: 2, 2: 2, 3: 1, 4: 1}
    assert accounts(queue.claim(session, owner="w")) == [1]
    rest = queue.claim(session, owner="w", limit=100)
    assert Counter(accounts(rest)) == {1: 27, 2: 1}
    assert set(ids(rest)) < set(ids(jobs))
    assert len(queue.claim(session, owner="w", limit=100)) == 0


def test_a_batch_of_few_keys_costs_few_statements(session: Session, engine: Engine) -> None:
    queue = fair()
    add(session, Mail, *[1] * 120, *[2] * 120)
    queue.claim(session, owner="w")

    with statements_seen(engine) as seen:
        jobs = queue.claim_rows(session, owner="w", limit=100)

    assert Counter(job.account_id for job in jobs) == {1: 50, 2: 50}
    assert len(seen) < 16


def test_within_a_key_the_claim_order_holds_and_tried_jobs_come_last(session: Session) -> None:
    queue = fair()
    first, second, third = add(session, Mail, 1, 1, 1)
    (urgent,) = add(session, Mail, 1, priority=-1)
    jobs = queue.claim(session, owner="w")
    assert ids(jobs) == [urgent.id]
    fail(session, jobs, retry_in=timedelta(0))

    order = [job for _ in range(4) for job in ids(queue.claim(session, owner="w"))]

    assert order == ids([first, second, third, urgent])


def test_jobs_without_a_key_have_their_turn_together(session: Session) -> None:
    add(session, Mail, None, None, None, 1, 1, 2)

    assert one_by_one(fair(), session, 7) == [None, 1, 2, None, 1, None]


@pytest.mark.parametrize("by_host", [False, True])
def test_several_columns_are_one_key(session: Session, by_host: bool) -> None:
    for region, host in [("eu", "a"), ("eu", "a"), ("eu", "b"), ("us", "a"), ("us", None)]:
        add(session, Mail, 1, region=region, host=host)
    queue = fair(*([Mail.host == "a"] if by_host else []), by=(Mail.region, Mail.host))

    claims = [queue.claim(session, owner="w") for _ in range(5)]

    keys = [(job.region, job.host) for claim in claims for job in claim]
    if by_host:
        assert keys == [("eu", "a"), ("us", "a"), ("eu", "a")]
    else:
        assert keys == [("us", None), ("eu", "a"), ("eu", "b"), ("us", "a"), ("eu", "a")]


def test_jobs_that_are_not_due_or_hidden_hold_up_nobody(session: Session) -> None:
    queue = fair()
    add(session, Mail, *[1] * 3, run_at=datetime.now(UTC) + timedelta(hours=1))
    add(session, Mail, *[2] * 20, host="theirs")
    add(session, Mail, 2, 3, 1, host="ours")
    only_seeing(session, Mail, Mail.host == "ours")

    assert one_by_one(queue, session, 4) == [1, 2, 3]


@pytest.mark.only_on(*SERVERS)
def test_locked_jobs_are_passed_over_and_their_keys_are_not(
    session: Session, other: Session
) -> None:
    add(session, Mail, *[1] * 20, 2, 2)
    assert Counter(accounts(fair().claim(other, owner="x", limit=4))) == {1: 2, 2: 2}

    assert accounts(fair().claim(session, owner="w", limit=3)) == [1, 1, 1]


def test_a_claim_reads_few_of_the_jobs_of_a_key(crowded: Engine) -> None:
    with Session(crowded) as session:
        queue = fair()
        queue.claim(session, owner="w")
        jobs, rows = read(session, queue, limit=10)

    assert Counter(accounts(jobs)) == dict.fromkeys(range(10), 1)
    assert rows < 600


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_worker_handles_the_jobs_of_a_small_key_soon(
    engine: Engine, session: Session, concurrency: int
) -> None:
    add(session, Mail, *[1] * 200, 2, 3)
    handled: list[int | None] = []
    queue = fair()
    queue.handler(lambda mail: handled.append(mail.account_id))

    Worker(engine, queue, drain=True, concurrency=concurrency).run()

    assert max(handled.index(2), handled.index(3)) < 30
    assert len(handled) == 202


@pytest.mark.parametrize(
    ("entity", "arguments", "words"),
    [
        (Note, {"fair_by": Note.account_id}, r'"per_key": \[.account_id.\]'),
        (Mail, {"fair_by": Mail.priority}, "index of its key"),
        (Mail, {"fair_by": "account_id"}, "takes attributes of Mail"),
        (Mail, {"fair_by": Mail.account_id, "order_by": Mail.id.desc()}, "order_by= out"),
        (
            Mail,
            {"fair_by": Mail.account_id, "serial_by": Mail.account_id},
            "leave serial_by= and limit_by= out",
        ),
        (Mail, {"fair_by": Mail.account_id, "strict_order": True}, "leave strict_order=True out"),
        (
            Mail,
            {"fair_by": Mail.account_id, "strategy": "candidates"},
            "leave strategy='candidates' out",
        ),
    ],
)
def test_what_cannot_be_is_refused(entity: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        JobQueue(entity, **arguments)
