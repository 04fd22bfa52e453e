"""The fence: a finish reaches exactly the rows of its own claim."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, inspect, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    cancel_claimed,
    claim,
    complete,
    fail,
    fence_of,
    release,
    renew,
    with_fence,
)
from tests.contract.finish.support import statuses
from tests.models import Email, Render, add_emails, add_renders
from tests.support import SERVERS, Sessions, statements_seen

pytestmark = pytest.mark.strategies("auto")


def take_away(session: Session, *emails: Email) -> None:
    """Have another owner claim what was reaped, as far as the database can tell."""
    ids = [email.id for email in emails]
    session.execute(
        update(Email)
        .where(Email.id.in_(ids))
        .values(owner="thief", owner_date=datetime.now(UTC))
        .execution_options(synchronize_session=False)
    )
    session.commit()


def test_a_deleted_job_is_back_after_a_rollback_and_may_be_finished(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    complete(session, claimed, delete=True)
    assert [inspect(email).deleted for email in claimed] == [True] * 3
    session.rollback()

    assert [email.status for email in claimed] == ["claimed"] * 3
    complete(session, claimed)
    session.commit()
    assert statuses(other) == [(r, "done", "w") for r in "abc"]


def test_a_lost_claim_is_reported_and_nothing_written_for_it(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    a, b, c = claimed
    take_away(other, b)

    with pytest.raises(ClaimLost) as lost:
        complete(session, claimed)

    assert (lost.value.lost, lost.value.kept) == ((b,), (a, c))
    assert isinstance(lost.value, StaleDataError)
    session.commit()
    assert statuses(other) == [("a", "done", "w"), ("b", "claimed", "thief"), ("c", "done", "w")]


@pytest.mark.parametrize("verb", [complete, fail, release, renew, cancel_claimed])
def test_no_verb_writes_to_a_lost_claim(
    session: Session,
    other: Session,
    claimed: Claim[Email],
    verb: Callable[[Session, object], None],
) -> None:
    take_away(other, *claimed)
    before = statuses(other)
    other.commit()

    with pytest.raises(ClaimLost):
        verb(session, claimed)
    session.commit()

    assert statuses(other) == before


@pytest.mark.parametrize("column", ["owner", "owner_date", "status"])
def test_each_part_of_the_fence_holds(
    session: Session, other: Session, claimed: Claim[Email], column: str
) -> None:
    changed = {
        "owner": "x",
        "owner_date": datetime(2020, 1, 1, tzinfo=UTC),
        "status": "done",
    }
    other.execute(update(Email).values({column: changed[column]}))
    other.commit()

    with pytest.raises(ClaimLost):
        complete(session, claimed)


def test_a_fence_is_carried_to_another_session_and_process(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    fence = pickle.loads(pickle.dumps(fence_of(claimed[0])))
    same = other.get(Email, claimed[0].id)
    assert same is not None

    complete(other, with_fence(same, fence))
    complete(other, pickle.loads(pickle.dumps(fence_of(claimed[1]))))
    other.commit()

    assert [status for _, status, _ in statuses(session)] == ["done", "done", "claimed"]
    with pytest.raises(ArgumentError, match="not the row"):
        with_fence(same, fence_of(claimed[2]))


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_refuses_to_be_carried_to_another_process(session: Session) -> None:
    add_emails(session, "a")
    (held,) = claim(session, Email, strategy="held")

    with pytest.raises(ArgumentError, match="belongs to its connection"):
        pickle.dumps(fence_of(held))

    assert (fence_of(held).owner, fence_of(held).owner_date) == (None, None)


def test_the_fence_survives_expiry_and_costs_no_reload(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    session = new_session(expire_on_commit=True)
    add_emails(session, "a", "b")
    emails = claim(session, Email, owner="w", limit=2, strategy=strategy)
    session.commit()

    with statements_seen(engine) as seen:
        complete(session, emails)

    assert [one for one in seen if "recipient" in one] == []
    session.commit()
    assert [status for _, status, _ in statuses(session)] == ["done", "done"]


@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_finish_accepts_a_renewal_made_elsewhere_even_if_it_was_rolled_back(
    session: Session, other: Session, claimed: Claim[Email], end: Callable[[Session], None]
) -> None:
    renew(other, [fence_of(email) for email in claimed])
    end(other)

    complete(session, claimed)
    session.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


def test_a_renewal_starts_the_lease_again_and_a_copy_of_the_fence_before_it_is_lost(
    session: Session, claimed: Claim[Email]
) -> None:
    old = pickle.loads(pickle.dumps(fence_of(claimed[0])))
    before = claimed[0].owner_date

    renew(session, claimed)

    now = claimed[0].owner_date
    assert before is not None
    assert now is not None
    assert now >= before
    assert fence_of(claimed[0]).owner_date == now
    with pytest.raises(ClaimLost):
        complete(session, old)


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("finish", "after"),
    [
        (renew, "running"),
        (complete, "done"),
        (fail, "unclaimed"),
        (release, "unclaimed"),
        (cancel_claimed, "cancelled"),
    ],
)
def test_a_claim_is_ours_in_each_status_that_the_class_lists_for_claimed_jobs(
    session: Session, other: Session, finish: Callable[..., None], after: str
) -> None:
    add_renders(session, 2)
    claimed = claim(session, Render, owner="w", limit=2)
    session.execute(update(Render).values(status="running"))
    session.commit()

    finish(session, claimed)
    session.commit()

    assert other.scalars(select(Render.status)).all() == [after] * 2
