"""Two queues of one worker do not claim the same jobs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.worker import Worker
from tests.models import Email, Task

pytestmark = pytest.mark.only_on("sqlite")


def handled(*queues: JobQueue[Any]) -> tuple[JobQueue[Any], ...]:
    for queue in queues:
        queue.handler(lambda job: None)
    return queues


@pytest.mark.parametrize("criteria", [[], [Email.recipient == "a"]])
def test_two_queues_with_the_same_jobs_are_refused(engine: Engine, criteria: list[Any]) -> None:
    queues = handled(JobQueue(Email, *criteria), JobQueue(Task), JobQueue(Email, *criteria))

    with pytest.raises(ArgumentError, match=r"claim the same jobs.*criteria of its own"):
        Worker(engine, queues)


def test_queues_with_other_criteria_are_accepted(engine: Engine) -> None:
    one, other = (JobQueue(Email, Email.recipient == name) for name in "ab")

    assert len(Worker(engine, handled(one, other, JobQueue(Task))).lanes) == 3
