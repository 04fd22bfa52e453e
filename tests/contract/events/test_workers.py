"""What a worker tells: a handler begins, and the lock of its Owner was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, LockLost, Owner, reap
from sa_jobqueue.worker import Worker
from tests.contract.events.conftest import Hear
from tests.contract.events.support import names
from tests.models import Email, Task, add_emails, add_tasks

SOON = timedelta(milliseconds=20)


def test_a_worker_tells_of_each_job_that_begins(
    engine: Engine, session: Session, hear: Hear
) -> None:
    add_tasks(session, "a")
    queue, begun = JobQueue(Task), list[list[str]]()
    heard = hear(queue)

    def handle(task: Task) -> None:
        begun.append(names(heard))

    Worker(engine, queue, handle, drain=True, poll=SOON).run()

    assert begun == [["after_claim", "after_start"]]
    assert names(heard) == ["after_claim", "after_start", "after_finish"]
    assert heard[1].jobs[0].attempts == 1
    assert heard[1].jobs[0].owner_dates == heard[0].jobs[0].owner_dates


def test_a_worker_tells_that_its_lock_was_lost(
    engine: Engine, session: Session, hear: Hear, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    heard = hear(Email, "after_lock_lost")
    losses = [LockLost("the connection of the lock has ended")]
    named = vars(Owner)["name"]

    def name(owner: Owner) -> Any:
        if losses:
            raise losses.pop()
        return named.fget(owner)

    monkeypatch.setattr(Owner, "name", property(name))
    Worker(engine, JobQueue(Email), lambda email: None, drain=True, poll=SOON).run()

    assert names(heard) == ["after_lock_lost"]


def test_no_begin_is_told_of_a_transactional_job_whose_claim_is_lost(
    engine: Engine, session: Session, hear: Hear
) -> None:
    add_tasks(session, "a")
    queue, called, begun = JobQueue(Task), list[str](), list[list[str]]()
    heard = hear(queue)

    @queue.handler(transactional=True)
    def handle(session: Session, task: Task) -> None:
        called.append(task.name)
        begun.append(names(heard))

    def steal(claim: Any) -> None:
        if not called and names(heard).count("after_claim") == 1:
            with Session(engine) as other:
                reap(other, Task, max_runtime=timedelta(0))
                other.commit()

    Worker(engine, queue, drain=True, poll=SOON, on_claim=steal).run()

    assert called == ["a"]
    assert begun == [["after_claim", "after_claim", "after_start"]]
    assert names(heard) == ["after_claim", "after_claim", "after_start", "after_finish"]
