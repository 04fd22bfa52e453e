"""What a finish takes: entities, fences, rows, whole claims; and what it costs."""

from __future__ import annotations

import pickle
import time

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, make_transient

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    claim,
    claimed_by,
    complete,
    release,
)
from tests.contract.finish.support import statuses
from tests.models import (
    Email,
    add_emails,
    recipients,
)
from tests.support import SERVERS, begin_deferred

pytestmark = pytest.mark.strategies("auto")


def test_an_owners_claims_are_found_again_with_their_fences(
    other: Session, claimed: Claim[Email]
) -> None:
    found = claimed_by(other, Email, "w")

    assert recipients(found) == ["a", "b", "c"]
    release(other, found[:1])
    complete(other, found[1:])
    other.commit()
    assert [status for _, status, _ in statuses(other)] == ["unclaimed", "done", "done"]
    assert len(claimed_by(other, Email, "somebody")) == 0


def test_a_finish_in_a_savepoint_is_undone_with_it(session: Session, claimed: Claim[Email]) -> None:
    begin_deferred(session.connection())
    savepoint = session.begin_nested()
    complete(session, claimed)
    savepoint.rollback()

    assert [email.status for email in claimed] == ["claimed"] * 3
    complete(session, claimed)
    session.commit()
    assert [email.status for email in claimed] == ["done"] * 3


# What is given, in whatever shape


def test_rows_are_finished_by_another_process_or_one_by_one_by_their_fences(
    session: Session,
) -> None:
    queue = JobQueue(Email)
    add_emails(session, "a", "b", "c")
    first = queue.claim_rows(session, owner="w", limit=2)
    (single,) = queue.claim_rows(session, owner="w").fences
    session.commit()

    queue.complete(session, pickle.loads(pickle.dumps(first)))
    release(session, single)

    assert [status for _, status, _ in statuses(session)] == ["done", "done", "unclaimed"]
    with pytest.raises(ArgumentError, match="fences"):
        complete(session, first[0])


def test_an_entity_that_left_its_session_keeps_its_fence_and_one_without_a_row_is_lost(
    session: Session,
) -> None:
    add_emails(session, "a")
    (kept,) = claim(session, Email, owner="w")
    session.commit()
    session.add(Email(recipient="b"))
    session.flush()
    (gone,) = claim(session, Email, owner="w")
    session.rollback()

    with pytest.raises(ClaimLost):
        complete(session, gone)
    make_transient(kept)
    complete(session, kept)

    assert session.scalars(select(Email.status)).all() == ["done"]


@pytest.mark.parametrize("delete", [True, False])
def test_only_the_lost_row_of_a_claim_of_rows_is_lost(
    session: Session, other: Session, delete: bool
) -> None:
    add_emails(session, "a", "b", "c")
    queue = JobQueue(Email)
    rows = queue.claim_rows(session, owner="w", limit=3)
    session.commit()
    other.execute(update(Email).where(Email.recipient == "b").values(owner="somebody"))
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        queue.complete(session, rows, delete=delete)
    session.commit()

    assert [row.recipient for row in lost.value.lost] == ["b"]
    assert [row.recipient for row in lost.value.kept] == ["a", "c"]
    unfinished = select(Email.recipient).where(Email.status == "claimed")
    assert list(session.scalars(unfinished)) == ["b"]


# Beside others


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("delete", [True, False])
def test_a_finish_on_a_small_table_does_not_wait_for_a_row_that_others_have_locked(
    session: Session, other: Session, delete: bool
) -> None:
    add_emails(session, *"abcdefgh")
    session.commit()
    claimed = claim(session, Email, owner="w", limit=7)
    session.commit()
    last = session.scalars(select(func.max(Email.id))).one()
    session.commit()
    other.execute(select(Email).where(Email.id == last).with_for_update()).all()

    began = time.monotonic()
    complete(session, claimed, delete=delete)
    session.commit()

    assert time.monotonic() - began < 5  # to wait for a lock would take ten seconds
