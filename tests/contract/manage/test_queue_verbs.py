"""Jobs are cancelled, retried, reprioritized, pruned and counted: by a queue, its own jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, JobStatus, cancel, prune, reprioritize
from tests.models import (
    Account,
    Animal,
    Cat,
    Dog,
    Email,
    Message,
    Task,
    add_emails,
    add_tasks,
    names,
)

#: A second queue over the same table, with statuses of its own.
SECOND = JobQueue(Task, ready="packed", during="sending", then="sent")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

TASKS = JobQueue(Task)
SOON = JobQueue(Task, Task.name.like("a%"))


def statuses(session: Session) -> dict[str, str]:
    session.expire_all()
    return {row.name: row.status for row in session.execute(select(Task.name, Task.status))}


@pytest.fixture
def tasks(session: Session) -> list[Task]:
    """A job in each status of the class and of SECOND, each a day in it."""
    words = [*JobStatus, "packed", "sending", "sent"]
    yesterday = datetime.now(UTC) - timedelta(days=1)
    found = add_tasks(session, *map(str, words))
    for task, word in zip(found, words, strict=True):
        given = {"status": str(word), "owner": "w", "owner_date": yesterday}
        session.execute(update(Task).where(Task.id == task.id).values(given))
    session.commit()
    session.expire_all()
    return found


# New jobs


def test_a_queue_inserts_jobs_that_it_claims_unless_their_rows_say_their_own_status(
    session: Session,
) -> None:
    rows = [{"name": "a"}, {"name": "b", "status": "sent"}, {"name": "c"}]
    outbox = JobQueue(Message)

    inserted = SECOND.enqueue(session, iter(rows), priority=3)
    outbox.enqueue(session, [{"sequence": 1}])
    session.commit()

    assert inserted == 3
    assert statuses(session) == {"a": "packed", "b": "sent", "c": "packed"}
    claimed = SECOND.claim(session, owner="w", limit=9)
    assert [(task.name, task.priority) for task in claimed] == [("a", 3), ("c", 3)]
    assert not TASKS.claim(session, owner="w")
    assert session.scalars(select(Message.status)).all() == ["unsent"]
    assert outbox.claim(session, owner="w")


# Jobs that nobody has claimed


def test_a_cancel_in_a_savepoint_is_undone_with_it_in_what_entities_show(session: Session) -> None:
    (a,) = add_emails(session, "a")

    with session.begin_nested() as savepoint:
        cancel(session, a)
        assert a.status == "cancelled"
        savepoint.rollback()

    assert a.status == "unclaimed"


@pytest.mark.parametrize(("queue", "ready"), [(TASKS, "unclaimed"), (SECOND, "packed")])
def test_a_queue_cancels_and_reprioritizes_what_it_would_claim(
    session: Session, tasks: list[Task], queue: JobQueue[Task], ready: str
) -> None:
    changed = queue.reprioritize(session, tasks, -3)
    gone = queue.cancel(session, tasks)

    assert names(changed) == names(gone) == [ready]
    assert statuses(session)[ready] == "cancelled"
    assert {task.name for task in tasks if task.priority == -3} == {ready}


@pytest.mark.parametrize(
    ("queue", "retried", "ready"),
    [
        (TASKS, ["done", "failed", "cancelled"], "unclaimed"),
        (SECOND, ["failed", "cancelled", "sent"], "packed"),
    ],
)
def test_a_queue_takes_what_it_finished_to_its_own_beginning(
    session: Session, tasks: list[Task], queue: JobQueue[Task], retried: list[str], ready: str
) -> None:
    found = queue.retry(session, tasks)

    assert sorted(names(found)) == sorted(retried)
    assert {statuses(session)[name] for name in retried} == {ready}


def test_a_queue_does_not_take_back_what_the_next_queue_claims(session: Session) -> None:
    first = JobQueue(Message, then="unsent")
    session.add(message := Message(sequence=1))
    session.commit()

    assert first.retry(session, message) == []


# Old rows


def test_a_queue_prunes_what_it_completed_and_what_else_it_is_told(
    session: Session, tasks: list[Task]
) -> None:
    assert SECOND.prune(session, older_than=timedelta(hours=25)) == 0
    assert SECOND.prune(session, older_than=timedelta(hours=1)) == 1
    assert "sent" not in statuses(session)

    assert TASKS.prune(session, older_than=timedelta(hours=1), statuses=["failed", "done"]) == 2
    assert not {"failed", "done"} & set(statuses(session))


def test_rows_that_fulfil_the_criteria_of_a_queue_are_pruned_in_bounded_batches(
    session: Session,
) -> None:
    add_tasks(session, "a", "b", "ab")
    session.execute(update(Task).values(status="done", owner_date=LONG_AGO))

    assert SOON.prune(session, older_than=timedelta(days=1), limit=1) == 1
    assert SOON.prune(session, older_than=timedelta(days=1)) == 1
    assert set(statuses(session)) == {"b"}
    assert prune(session, Task, older_than=timedelta(0)) == 1


def test_rows_of_another_class_in_the_same_table_are_not_pruned(session: Session) -> None:
    session.add_all([Animal(), Cat()])
    session.flush()
    session.execute(update(Animal).values(status="done", owner_date=LONG_AGO))

    assert prune(session, Cat, older_than=timedelta(days=1)) == 1
    assert session.scalars(select(Animal.kind)).all() == ["animal"]


# Looking at the queue


def test_a_queue_counts_its_own_jobs_by_its_own_statuses(
    session: Session, tasks: list[Task]
) -> None:
    assert SECOND.count_by_status(session) == dict.fromkeys(
        ["packed", "sending", "sent", "failed", "cancelled"], 1
    )
    assert TASKS.count_by_status(session) == dict.fromkeys(map(str, JobStatus), 1)
    assert JobQueue(Task, Task.name == "done").count_by_status(session) == {
        **dict.fromkeys(map(str, JobStatus), 0),
        "done": 1,
    }


# What is refused

ADVISORY = JobQueue(Account, strategy="advisory")
NOW = timedelta(0)
PRUNED = "only finished jobs are pruned"
OF_ANOTHER = "not a job of this queue, whose class is Task"
SPREAD = r"spread over 2 tables, and prune\(\) deletes by one"


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (lambda s, email: TASKS.cancel(s, email), OF_ANOTHER),
        (lambda s, email: TASKS.retry(s, email), OF_ANOTHER),
        (lambda s, email: TASKS.reprioritize(s, email, 1), OF_ANOTHER),
        (lambda s, email: cancel(s, [object()]), "is not a job"),
        (lambda s, email: cancel(s, Email()), "Email is not in the database yet; flush it first"),
        (lambda s, email: reprioritize(s, email, 1), "PriorityMixin"),
        (lambda s, email: reprioritize(s, email, 10**6), "a priority is an integer"),
        (lambda s, _: SECOND.prune(s, older_than=NOW, statuses=["packed"]), PRUNED),
        (lambda s, _: SECOND.prune(s, older_than=NOW, statuses=["sending"]), PRUNED),
        (lambda s, _: prune(s, Email, older_than=NOW, statuses=["unclaimed"]), PRUNED),
        (lambda s, _: prune(s, Email, older_than=NOW, statuses=["claimed"]), PRUNED),
        (lambda s, _: prune(s, Email, older_than=NOW, limit=0), "rows to delete, at least 1"),
        (lambda s, _: prune(s, Animal, older_than=NOW), SPREAD),
        (lambda s, _: prune(s, Dog, older_than=NOW), SPREAD),
        (lambda s, _: ADVISORY.stats(s), "JobMixin"),
        (lambda s, _: ADVISORY.count_by_status(s), "JobMixin"),
        (lambda s, _: ADVISORY.enqueue(s, []), "JobMixin"),
    ],
)
def test_a_mistake_is_refused(session: Session, verb: Callable[..., Any], words: str) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match=words):
        verb(session, email)
