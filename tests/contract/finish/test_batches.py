"""What a finish takes: entities, fences, rows, whole claims; and what it costs."""

from __future__ import annotations

import pickle
import time
from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session, make_transient

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    claim,
    claimed_by,
    complete,
    reap,
    release,
    renew,
)
from tests.contract.finish.support import statuses
from tests.models import (
    Account,
    Animal,
    Document,
    Dog,
    Email,
    Message,
    Order,
    Pair,
    add_emails,
    recipients,
)
from tests.support import SERVERS, begin_deferred, statements_seen

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


def test_a_batch_is_finished_in_as_few_statements_as_the_database_allows(
    engine: Engine, session: Session, claimed: Claim[Email], db_alias: str
) -> None:
    with statements_seen(engine) as seen:
        release(session, [])
        renew(session, [])
        assert seen == []
        complete(session, claimed)

    writes = [one for one in seen if not one.startswith("SET TRANSACTION")]
    assert len(writes) == (1 if db_alias in ("sqlite", "postgresql") else 2)


def test_every_kind_of_model_is_finished(session: Session) -> None:
    session.add_all(
        [
            Order(),
            Message(sequence=1),
            Pair(left=1, right="a"),
            Pair(left=1, right="b"),
            Document(created=1),
            Dog(trick="roll"),
        ]
    )
    session.commit()
    jobs = [
        job
        for entity in (Order, Message, Pair, Document, Dog)
        for job in claim(session, entity, owner="w", limit=5)
    ]
    session.commit()

    complete(session, jobs)
    session.commit()

    assert len(jobs) == 6
    assert session.scalars(select(Order.job_status)).all() == ["done"]
    assert session.scalars(select(Message)).all() == []  # keep is False
    assert session.scalars(select(Pair.status)).all() == ["done", "done"]
    assert session.scalars(select(Document.status)).all() == ["done"]
    assert session.scalars(select(Animal.status)).all() == ["done"]


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


def test_lost_and_kept_jobs_are_listed_in_the_order_in_which_they_were_given(
    session: Session, other: Session
) -> None:
    add_emails(session, *"abcd")
    one, two = (claim(session, Email, owner="w", limit=2) for _ in range(2))
    session.commit()
    release(other, [one.fences[1], two.fences[0]])
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, [two[1], one[1], one[0], two[0]])

    assert recipients(lost.value.lost) == ["b", "c"]
    assert recipients(lost.value.kept) == ["d", "a"]


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
    slow = claim(session, Email, owner="slow", limit=10)
    session.commit()
    reap(other, Email, max_runtime=timedelta(0), limit=2)
    quick = claim(other, Email, owner="quick", limit=10)
    other.commit()

    finish_with_effects(other, quick)
    other.rollback()  # as if the process had died before its commit
    for finishing, jobs in [(session, slow), (other, quick), (session, slow)]:
        finish_with_effects(finishing, jobs)
        finishing.commit()

    effects = select(Account.name, func.count()).group_by(Account.name).order_by(Account.name)
    assert session.execute(effects).all() == [("a", 1), ("b", 1), ("c", 1)]
    assert set(session.scalars(select(Email.status))) == {"done"}


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
