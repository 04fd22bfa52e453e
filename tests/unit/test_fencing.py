"""A fence is carried from entity to entity and from process to process."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
)

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    Fence,
    JobMixin,
    NotClaimed,
    cancel,
    complete,
    fail,
    fence_of,
    release,
    renew,
    with_fence,
)
from sa_jobqueue.fence.token import Token
from sa_jobqueue.strategies.held import RowLocks

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)


def stored_email(id_: int = 1) -> Email:
    """Make an email that has a row, without a database."""
    email = Email(id=id_)
    make_transient_to_detached(email)
    return email


def fence_for(email: Email, token: Token | None = None) -> Fence:
    return Fence(Email, (email.id,), token or Token("claimed", "w", [NOON]))


# Carrying it


def test_a_fence_is_carried_to_another_entity_of_the_same_row() -> None:
    fence = fence_for(stored_email())

    email = with_fence(stored_email(), fence)

    assert fence_of(email) == fence


def test_the_fence_of_a_fence_is_itself() -> None:
    fence = fence_for(stored_email())

    assert fence_of(fence) is fence


def test_a_fence_survives_pickling() -> None:
    fence = fence_for(stored_email(7))

    copy = pickle.loads(pickle.dumps(fence))

    assert (copy.entity, copy.identity) == (Email, (7,))
    assert (copy.token.status, copy.owner, copy.owner_date) == ("claimed", "w", NOON)


def test_the_fences_of_one_claim_still_share_their_token_after_pickling() -> None:
    token = Token("claimed", "w", [NOON])
    fences = [fence_for(stored_email(id_), token) for id_ in (1, 2)]

    first, second = pickle.loads(pickle.dumps(fences))

    assert first.token is second.token


def test_a_pickled_entity_takes_its_fence_along() -> None:
    email = stored_email()
    with_fence(email, fence_for(email))

    copy = pickle.loads(pickle.dumps(email))

    assert fence_of(copy).owner_date == NOON


def test_a_held_claim_refuses_to_be_carried_to_another_process() -> None:
    held = fence_for(stored_email(), Token("unclaimed", None, hold=RowLocks(object())))

    with pytest.raises(ArgumentError, match="belongs to its connection"):
        pickle.dumps(held)


def test_the_date_of_a_fence_is_that_of_its_last_renewal() -> None:
    fence = fence_for(stored_email())

    fence.token.dates.append(NOON + timedelta(minutes=1))

    assert fence.owner_date == NOON + timedelta(minutes=1)


def test_a_held_claim_without_an_owner_has_neither_owner_nor_date() -> None:
    fence = fence_for(stored_email(), Token("unclaimed", None))

    assert (fence.owner, fence.owner_date) == (None, None)


def test_lost_claims_survive_pickling() -> None:
    lost = ClaimLost("complete", lost=[1], kept=[2, 3])

    copy = pickle.loads(pickle.dumps(lost))

    assert (copy.lost, copy.kept, str(copy)) == ((1,), (2, 3), str(lost))


# What has none


def test_an_entity_that_was_not_claimed_itself_has_no_fence() -> None:
    with pytest.raises(NotClaimed, match=r"Email 3 has no fence.*claimed_by.*with_fence"):
        fence_of(stored_email(3))


def test_a_new_entity_has_no_fence() -> None:
    with pytest.raises(NotClaimed, match="Email has no fence"):
        fence_of(Email())


@pytest.mark.parametrize(
    "thing", [None, 5, "email", object(), Email], ids=lambda one: type(one).__name__
)
def test_an_object_that_is_not_a_job_is_refused(thing: Any) -> None:
    with pytest.raises(ArgumentError, match="is not a job: an entity, a fence or a Claim"):
        fence_of(thing)


def test_a_fence_of_another_row_is_refused() -> None:
    fence = fence_for(stored_email(1))

    with pytest.raises(ArgumentError, match=r"Email 2 is not the row \(1,\)"):
        with_fence(stored_email(2), fence)


def test_a_fence_for_an_entity_without_a_row_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"is not the row \(1,\)"):
        with_fence(Email(id=1), fence_for(stored_email(1)))


# Verbs


@pytest.mark.parametrize("verb", [complete, fail, release, renew])
def test_a_verb_that_finishes_refuses_jobs_without_a_fence(verb: Any) -> None:
    with pytest.raises(NotClaimed):
        verb(Session(), [stored_email()])


@pytest.mark.parametrize("verb", [complete, fail, release, renew, cancel])
def test_a_verb_refuses_an_object_that_is_not_a_job(verb: Any) -> None:
    with pytest.raises(ArgumentError, match="is not a job"):
        verb(Session(), [object()])


@pytest.mark.parametrize("verb", [complete, fail, release, renew])
def test_a_verb_refuses_an_object_that_is_not_a_session(verb: Any) -> None:
    email = stored_email()
    with_fence(email, fence_for(email))

    with pytest.raises(ArgumentError, match="a Session is needed, not object"):
        verb(object(), email)


def test_a_verb_of_unclaimed_jobs_needs_their_rows() -> None:
    with pytest.raises(ArgumentError, match="Email is not in the database yet; flush it first"):
        cancel(Session(), Email())
