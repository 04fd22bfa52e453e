"""A hand-written SKIP LOCKED worker and a claim over the same table never take the same row."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, claim, complete
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, Sessions

pytestmark = pytest.mark.only_on(*SERVERS)

OLD_LOCK = text(
    "SELECT id FROM email WHERE status = 'unclaimed' ORDER BY id LIMIT :batch "
    "FOR UPDATE SKIP LOCKED"
)
OLD_MARK = text("UPDATE email SET status = 'claimed', owner = 'old' WHERE id = :id")


@pytest.fixture
def old(engine: Engine, new_session: Sessions) -> Session:
    """A session with READ COMMITTED, since InnoDB locks the gaps too by default."""
    return new_session(engine.execution_options(isolation_level="READ COMMITTED"))


def old_claim(session: Session, batch: int) -> list[str]:
    ids = session.execute(OLD_LOCK, {"batch": batch}).scalars().all()
    for id_ in ids:
        session.execute(OLD_MARK, {"id": id_})
    return [session.get_one(Email, id_).recipient for id_ in ids]


@pytest.mark.parametrize("by", ["candidates", "auto"])
def test_claims_and_old_workers_skip_each_others_rows(
    session: Session, old: Session, by: str
) -> None:
    add_emails(session, *"abcde")

    theirs = old_claim(old, 2)
    ours = claim(session, Email, owner="new", limit=2, strategy=by)
    old.commit()
    rest = old_claim(old, 5)

    assert (theirs, recipients(ours), rest) == (["a", "b"], ["c", "d"], ["e"])


def test_a_job_that_an_old_worker_takes_back_by_time_is_lost_to_its_claim(
    session: Session, old: Session
) -> None:
    """Hand-written rescue queries do this; the fence notices it."""
    add_emails(session, "a", "b")
    claimed = claim(session, Email, owner="new", limit=2)
    session.commit()
    old.execute(text("UPDATE email SET status = 'unclaimed' WHERE status = 'claimed'"))
    assert old_claim(old, 2) == ["a", "b"]
    old.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, claimed)

    assert len(lost.value.lost) == 2
