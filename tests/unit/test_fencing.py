"""A fence is carried from entity to entity and from process to process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    NotClaimed,
    cancel,
    claim,
    complete,
    fail,
    fence_of,
    release,
    renew,
    with_fence,
)
from tests.models import Email


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


# Carrying it


def test_a_fence_survives_pickling_and_is_its_own_fence(claimed: list[Email]) -> None:
    fence = fence_of(claimed[0])

    copy = pickle.loads(pickle.dumps(fence))

    assert fence_of(copy) is copy
    assert (copy.entity, copy.identity) == (Email, (1,))
    assert (copy.owner, copy.owner_date) == ("w", fence.owner_date)


def test_the_fences_of_one_claim_still_share_their_dates_after_pickling(
    claimed: list[Email],
) -> None:
    first, second = pickle.loads(pickle.dumps([fence_of(email) for email in claimed]))

    assert first.token is second.token


def test_a_pickled_entity_takes_its_fence_along(claimed: list[Email]) -> None:
    copy = pickle.loads(pickle.dumps(claimed[0]))

    assert fence_of(copy).owner_date == fence_of(claimed[0]).owner_date


def test_the_date_of_a_fence_is_that_of_its_last_renewal(
    session: Session, claimed: list[Email]
) -> None:
    fence = fence_of(claimed[0])
    before = fence.owner_date
    assert before is not None

    renew(session, claimed)

    assert fence.owner_date is not None
    assert timedelta(0) < fence.owner_date - before < timedelta(minutes=1)


def test_lost_claims_survive_pickling() -> None:
    lost = ClaimLost("complete", lost=[1], kept=[2, 3])

    copy = pickle.loads(pickle.dumps(lost))

    assert (copy.lost, copy.kept, str(copy)) == ((1,), (2, 3), str(lost))


# What has none


def test_an_entity_that_was_not_claimed_itself_has_no_fence(session: Session) -> None:
    with pytest.raises(NotClaimed, match=r"Email 2 has no fence.*claimed_by.*with_fence"):
        fence_of(session.get(Email, 2))
    with pytest.raises(NotClaimed, match="Email has no fence"):
        fence_of(Email())


@pytest.mark.parametrize(
    "thing", [None, 5, "email", object(), Email], ids=lambda one: type(one).__name__
)
def test_an_object_that_is_not_a_job_is_refused(thing: Any) -> None:
    with pytest.raises(ArgumentError, match="is not a job: an entity, a fence or a Claim"):
        fence_of(thing)


def test_a_fence_of_another_row_is_refused(claimed: list[Email]) -> None:
    fence = fence_of(claimed[0])

    with pytest.raises(ArgumentError, match=r"Email 2 is not the row \(1,\)"):
        with_fence(claimed[1], fence)
    with pytest.raises(ArgumentError, match=r"is not the row \(1,\)"):
        with_fence(Email(id=1), fence)


# Verbs


@pytest.mark.parametrize("verb", [complete, fail, release, renew])
def test_a_verb_that_finishes_refuses_what_has_no_fence_no_job_and_no_session(
    session: Session, claimed: list[Email], verb: Any
) -> None:
    session.rollback()
    with pytest.raises(NotClaimed):
        verb(session, [Email(id=3)])
    with pytest.raises(ArgumentError, match="is not a job"):
        verb(session, [object()])
    with pytest.raises(ArgumentError, match="a Session is needed, not object"):
        verb(object(), claimed[0])


def test_a_verb_of_unclaimed_jobs_needs_their_rows() -> None:
    with pytest.raises(ArgumentError, match="is not a job"):
        cancel(Session(), [object()])
    with pytest.raises(ArgumentError, match="Email is not in the database yet; flush it first"):
        cancel(Session(), Email())
