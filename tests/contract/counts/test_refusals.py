"""What cannot be counted or listed is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, position

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Listed, list_jobs, overview
from sa_jobqueue.prometheus import QueueCollector
from tests.models import Account, Email, Task, add_emails

from .models import Parcel, Pigeon, add, boxes, parcels

ADVISORY: JobQueue[Any] = JobQueue(Account, Account.id > 0, strategy="advisory")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s, email: list_jobs(s, Parcel, Listed.DUE, limit=0), "at least 1"),
        (lambda s, email: overview(s, [JobQueue(Pigeon), Account]), "JobMixin"),
        (lambda s, email: position(s, Email(recipient="b")), "flush"),
        (lambda s, email: position(s, [email]), "is not a job"),
        (lambda s, email: JobQueue(Task).position(s, email), "queue"),
        (lambda s, email: QueueCollector(s.bind, [ADVISORY]), "add JobMixin to its bases"),
        (lambda s, email: QueueCollector(s.bind, [parcels, boxes]), "two queues are called"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(
    session: Session, call: Callable[..., Any], words: str
) -> None:
    (email,) = add_emails(session, "a")
    add(session, Pigeon(id=1, wing=1))

    with pytest.raises(ArgumentError, match=words):
        call(session, email)
