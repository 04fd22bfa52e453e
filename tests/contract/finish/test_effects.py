"""Effects in the transaction of the finish: one for each done job, whoever was late or died."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, ClaimLost, claim, complete, reap
from tests.models import Account, Email, add_emails
from tests.support import MARKING

pytestmark = pytest.mark.strategies(*MARKING)


def claimed(session: Session, owner: str) -> Claim[Email]:
    found = claim(session, Email, owner=owner, limit=10)
    session.commit()
    return found


def finish_with_effects(session: Session, jobs: Claim[Email]) -> None:
    """Finish first, then write the effects of what was kept."""
    kept = list(jobs)
    try:
        complete(session, jobs)
    except ClaimLost as lost:
        kept = list(lost.kept)
    session.add_all(Account(name=email.recipient) for email in kept)


def test_each_done_job_has_one_effect_however_many_have_claimed_it(
    session: Session, other: Session
) -> None:
    add_emails(session, "a", "b", "c")
    slow = claimed(session, "slow")
    reap(other, Email, max_runtime=timedelta(0), limit=2)
    other.commit()
    quick = claimed(other, "quick")

    finish_with_effects(other, quick)
    other.rollback()  # as if the process had died before its commit
    finish_with_effects(session, slow)
    session.commit()
    finish_with_effects(other, quick)
    other.commit()
    finish_with_effects(session, slow)
    session.commit()

    effects = select(Account.name, func.count()).group_by(Account.name).order_by(Account.name)
    assert session.execute(effects).all() == [("a", 1), ("b", 1), ("c", 1)]
    assert set(session.scalars(select(Email.status))) == {"done"}
