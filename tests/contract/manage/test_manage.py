"""Jobs are cancelled, retried, reprioritized and pruned."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    Claim,
    cancel,
    claim,
    complete,
    fail,
    prune,
    reprioritize,
    retry,
)
from tests.contract.finish.support import statuses
from tests.models import Email, Task, add_emails, add_tasks

pytestmark = pytest.mark.strategies("auto")


def test_cancel_changes_only_unclaimed_jobs_and_returns_them(
    session: Session, other: Session, strategy: str
) -> None:
    a, b = add_emails(session, "a", "b")
    claim(other, Email, Email.recipient == "a", owner="w", strategy=strategy)
    other.commit()

    cancelled = cancel(session, [a, b])
    session.commit()

    assert cancelled == [b]
    assert statuses(other) == [("a", "claimed", "w"), ("b", "cancelled", None)]
    assert [a.status, b.status] == ["claimed", "cancelled"]


def test_a_cancel_in_a_savepoint_is_undone_with_it_in_what_entities_show(
    session: Session,
) -> None:
    (a,) = add_emails(session, "a")

    with session.begin_nested() as savepoint:
        cancel(session, a)
        assert a.status == "cancelled"
        savepoint.rollback()

    assert a.status == "unclaimed"


def test_retry_brings_finished_jobs_back_with_new_attempts(session: Session, strategy: str) -> None:
    (a,) = add_tasks(session, "a", max_attempts=1)
    fail(session, claim(session, Task, owner="w", strategy=strategy))
    assert a.status == "failed"

    assert retry(session, [a]) == [a]

    assert (a.status, a.owner, a.attempts) == ("unclaimed", None, 0)
    assert retry(session, a) == []


def test_reprioritize_changes_only_unclaimed_jobs(session: Session, strategy: str) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    claim(session, Task, owner="w", strategy=strategy)

    assert reprioritize(session, [a, c], -3) == [c]

    assert (a.priority, b.priority, c.priority) == (0, 0, -3)
    with pytest.raises(ArgumentError, match="integer"):
        reprioritize(session, [c], 10**6)
    with pytest.raises(ArgumentError, match="PriorityMixin"):
        reprioritize(session, add_emails(session, "x"), 1)


def test_prune_deletes_finished_jobs_in_bounded_batches(
    session: Session, claimed: Claim[Email]
) -> None:
    complete(session, claimed)
    add_emails(session, "waiting")

    assert prune(session, Email, older_than=timedelta(hours=1)) == 0
    assert prune(session, Email, older_than=timedelta(0), limit=2) == 2
    assert prune(session, Email, older_than=timedelta(0), limit=2) == 1

    session.expire_all()
    assert [recipient for recipient, _, _ in statuses(session)] == ["waiting"]
    with pytest.raises(ArgumentError, match="finished"):
        prune(session, Email, older_than=timedelta(0), statuses=["unclaimed"])
