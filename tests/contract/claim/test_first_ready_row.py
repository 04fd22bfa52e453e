"""On InnoDB a claim looks up where the ready jobs begin, past the entries of jobs that are gone."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, release
from tests.models import Email, add_emails, recipients
from tests.support import Sessions

pytestmark = [
    pytest.mark.only_on("mysql", "mariadb"),
    pytest.mark.strategies("skip_locked", "held"),
]


def test_a_job_that_comes_back_is_claimed_before_the_jobs_behind_it(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    session.commit()
    marked = JobQueue(Email).claim(other, owner="w", limit=2)
    other.commit()
    queue = JobQueue(Email, strategy=strategy)
    assert recipients(queue.claim(session, owner="w")) == ["c"]
    session.rollback()
    release(other, marked[:1])
    other.commit()

    assert recipients(queue.claim(session, owner="w", limit=2)) == ["a", "c"]


def test_a_job_before_those_of_an_old_snapshot_is_claimed_first(
    engine: Engine, new_session: Sessions, other: Session, strategy: str
) -> None:
    other.add(Email(id=200, recipient="second"))
    other.commit()
    session = new_session(engine.execution_options(isolation_level="REPEATABLE READ"))
    assert session.scalars(select(Email.id)).all() == [200]  # the snapshot is taken
    other.add(Email(id=100, recipient="first"))
    other.commit()

    claimed = JobQueue(Email, strategy=strategy).claim(session, owner="w")

    assert recipients(claimed) == ["first"]
