"""An open transaction that holds the next jobs does not keep the jobs behind them from anybody."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, cancel
from tests.models import Email, add_emails
from tests.support import SERVERS

pytestmark = pytest.mark.only_on(*SERVERS)

#: Locks rows, and marks nothing: a plain read finds them unclaimed.
HOLDING = JobQueue(Email, strategy="held")


@pytest.mark.parametrize("limit", [1, 10, 99])
def test_candidates_are_drawn_until_the_limit_is_met_or_nothing_is_left(
    session: Session, other: Session, limit: int
) -> None:
    emails = add_emails(session, *(str(n) for n in range(150)))
    ids = [email.id for email in emails]
    queue = JobQueue(Email, Email.subject.is_(None), strategy="candidates")
    assert len(HOLDING.claim(other, limit=90)) == 90

    claimed = queue.claim(session, owner="w", limit=limit)

    assert [email.id for email in claimed] == ids[90 : 90 + limit]
    assert claimed.lost == 90


@pytest.mark.parametrize("limit", [1, 5])
def test_keys_are_tried_until_the_limit_is_met(
    session: Session, other: Session, limit: int
) -> None:
    emails = add_emails(session, *(str(n) for n in range(30)))
    ids = [email.id for email in emails]
    theirs = other.scalars(select(Email).where(Email.id.in_(ids[:12]))).all()
    cancel(other, theirs)

    claimed = JobQueue(Email, serial_by=Email.recipient).claim(session, owner="w", limit=limit)

    assert [email.id for email in claimed] == ids[12 : 12 + limit]
