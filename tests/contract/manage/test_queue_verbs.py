"""The verbs of a JobQueue that are also functions: each acts on the queue's own jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, JobStatus, prune
from tests.models import Account, Animal, Cat, Dog, Message, Task, add_emails, add_tasks, names

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


def test_a_queue_inserts_jobs_that_it_claims(session: Session) -> None:
    inserted = SECOND.enqueue(session, ({"name": name} for name in "ab"), priority=3)
    session.commit()

    claimed = SECOND.claim(session, owner="w", limit=9)
    assert (inserted, names(claimed)) == (2, ["a", "b"])
    assert [task.priority for task in claimed] == [3, 3]
    assert not TASKS.claim(session, owner="w")


def test_a_queue_inserts_jobs_with_the_word_of_its_class(session: Session) -> None:
    outbox = JobQueue(Message)

    outbox.enqueue(session, [{"sequence": 1}])

    assert session.scalars(select(Message.status)).all() == ["unsent"]
    assert outbox.claim(session, owner="w")


def test_a_row_says_its_own_status(session: Session) -> None:
    SECOND.enqueue(session, [{"name": "a"}, {"name": "b", "status": "sent"}])

    assert statuses(session) == {"a": "packed", "b": "sent"}


# Jobs that nobody has claimed


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


@pytest.mark.parametrize(
    "verb", [TASKS.cancel, TASKS.retry, lambda s, jobs: TASKS.reprioritize(s, jobs, 1)]
)
def test_jobs_of_another_table_are_refused(
    session: Session, verb: Callable[[Session, Any], Any]
) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match="not a job of this queue, whose class is Task"):
        verb(session, email)


# Old rows


def test_a_queue_prunes_what_it_completed(session: Session, tasks: list[Task]) -> None:
    assert SECOND.prune(session, older_than=timedelta(hours=1)) == 1
    assert "sent" not in statuses(session)

    assert TASKS.prune(session, older_than=timedelta(hours=1), statuses=["failed", "done"]) == 2
    assert not {"failed", "done"} & set(statuses(session))


def test_a_queue_prunes_rows_that_fulfil_its_criteria(session: Session) -> None:
    add_tasks(session, "a", "b", "ab")
    session.execute(update(Task).values(status="done", owner_date=LONG_AGO))

    assert SOON.prune(session, older_than=timedelta(days=1), limit=1) == 1
    assert SOON.prune(session, older_than=timedelta(days=1)) == 1
    assert set(statuses(session)) == {"b"}


@pytest.mark.parametrize("word", ["packed", "sending", JobStatus.UNCLAIMED, JobStatus.CLAIMED])
def test_a_queue_prunes_no_job_that_is_not_finished(session: Session, word: str) -> None:
    with pytest.raises(ArgumentError, match="only finished jobs are pruned"):
        SECOND.prune(session, older_than=timedelta(0), statuses=[word])


def test_rows_of_another_class_in_the_same_table_are_not_pruned(session: Session) -> None:
    session.add_all([Animal(), Cat()])
    session.flush()
    session.execute(update(Animal).values(status="done", owner_date=LONG_AGO))

    assert prune(session, Cat, older_than=timedelta(days=1)) == 1
    assert session.scalars(select(Animal.kind)).all() == ["animal"]


@pytest.mark.parametrize("entity", [Animal, Dog])
def test_rows_that_are_spread_over_several_tables_are_not_pruned(
    session: Session, entity: type[Any]
) -> None:
    with pytest.raises(ArgumentError, match=r"spread over 2 tables, and prune\(\) deletes by one"):
        prune(session, entity, older_than=timedelta(days=1))


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


def test_the_verbs_of_jobs_refuse_a_class_without_job_mixin(session: Session) -> None:
    rows = JobQueue(Account, strategy="advisory")

    for verb in (rows.stats, rows.count_by_status, lambda s: rows.enqueue(s, [])):
        with pytest.raises(ArgumentError, match="JobMixin"):
            verb(session)
