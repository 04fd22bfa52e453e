"""A fence is carried to other entities and processes; what has none is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobQueueError,
    NotClaimed,
    claim,
    complete,
    fail,
    fence_of,
    release,
    renew,
)
from tests.models import Email

FINISHES: list[Any] = [complete, fail, release, renew]


@pytest.fixture
def session() -> Iterator[Session]:
    """Give a session on a database in memory with two emails."""
    engine = create_engine("sqlite://")
    Email.metadata.create_all(engine, [Email.metadata.tables["email"]])
    with Session(engine, expire_on_commit=False) as session:
        session.add_all([Email(recipient="a"), Email(recipient="b")])
        session.commit()
        yield session


def test_a_fence_survives_pickling_with_its_entity_and_so_do_lost_claims(session: Session) -> None:
    (email,) = claim(session, Email, owner="w")

    copy, lost = pickle.loads(pickle.dumps((email, ClaimLost("complete", lost=[1], kept=[2, 3]))))

    assert fence_of(copy).owner_date == fence_of(email).owner_date
    assert (lost.lost, lost.kept) == ((1,), (2, 3))


#: What has no fence, and what is said of it.
NO_JOBS: list[tuple[Any, type[JobQueueError], str]] = [
    (lambda s: fence_of(s.get(Email, 2)), NotClaimed, "Email 2 has no fence.*claimed_by.*with_f"),
    (lambda s: fence_of(Email()), NotClaimed, "Email has no fence"),
    (lambda s: fence_of(None), ArgumentError, "is not a job: an entity, a fence or a Claim"),
    (lambda s: fence_of(Email), ArgumentError, "is not a job: an entity, a fence or a Claim"),
    *((lambda s, v=v: v(s, [Email(id=3)]), NotClaimed, "has no fence") for v in FINISHES),
    *((lambda s, v=v: v(s, [object()]), ArgumentError, "is not a job") for v in FINISHES),
    *(
        (lambda s, v=v: v(object(), claim(s, Email, owner="w")), ArgumentError, "a Session is")
        for v in FINISHES
    ),
]


@pytest.mark.parametrize(("refused", "error", "words"), NO_JOBS)
def test_what_has_no_fence_is_refused(
    session: Session, refused: Any, error: type[JobQueueError], words: str
) -> None:
    with pytest.raises(error, match=words):
        refused(session)
