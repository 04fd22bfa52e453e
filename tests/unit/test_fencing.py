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
    with_fence,
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


@pytest.fixture
def claimed(session: Session) -> list[Email]:
    return [*claim(session, Email, owner="w", limit=2)]


def test_fences_survive_pickling_by_themselves_and_with_their_entities(
    claimed: list[Email],
) -> None:
    fence = fence_of(claimed[0])

    first, second, email = pickle.loads(pickle.dumps([fence, fence_of(claimed[1]), claimed[0]]))

    assert fence_of(first) is first
    assert (first.entity, first.identity, first.owner) == (Email, (1,), "w")
    assert first.token is second.token  # they still share their dates
    assert fence_of(email).owner_date == first.owner_date == fence.owner_date


def test_lost_claims_survive_pickling() -> None:
    lost = ClaimLost("complete", lost=[1], kept=[2, 3])

    copy = pickle.loads(pickle.dumps(lost))

    assert (copy.lost, copy.kept, str(copy)) == ((1,), (2, 3), str(lost))


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (
            lambda s, job: fence_of(s.get(Email, 2)),
            NotClaimed,
            r"Email 2 has no fence.*claimed_by.*with_fence",
        ),
        (lambda s, job: fence_of(Email()), NotClaimed, "Email has no fence"),
        *(
            (
                lambda s, job, thing=thing: fence_of(thing),
                ArgumentError,
                "is not a job: an entity, a fence or a Claim",
            )
            for thing in (None, 5, "email", Email)
        ),
        (
            lambda s, job: with_fence(s.get(Email, 2), fence_of(job)),
            ArgumentError,
            r"Email 2 is not the row \(1,\)",
        ),
        (
            lambda s, job: with_fence(Email(id=1), fence_of(job)),
            ArgumentError,
            r"is not the row \(1,\)",
        ),
        *(
            case
            for verb in FINISHES
            for case in [
                (lambda s, job, verb=verb: verb(s, [Email(id=3)]), NotClaimed, "has no fence"),
                (lambda s, job, verb=verb: verb(s, [object()]), ArgumentError, "is not a job"),
                (
                    lambda s, job, verb=verb: verb(object(), job),
                    ArgumentError,
                    "a Session is needed, not object",
                ),
            ]
        ),
    ],
)
def test_what_has_no_fence_is_refused(
    session: Session, refused: Any, error: type[JobQueueError], words: str
) -> None:
    (job,) = claim(session, Email, owner="w")

    with pytest.raises(error, match=words):
        refused(session, job)
