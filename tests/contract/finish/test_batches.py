"""What a finish takes: entities, fences, rows, whole claims; and what it costs."""

from __future__ import annotations

import pickle
import time

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
    release,
    renew,
)
from tests.contract.finish.support import statuses
from tests.models import Animal, Document, Dog, Email, Message, Order, Pair, add_emails, recipients
from tests.support import MARKING, SERVERS, begin_deferred, statements_seen

pytestmark = pytest.mark.strategies(*MARKING)


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


def test_single_rows_are_finished_by_their_fences(session: Session, strategy: str) -> None:
    add_emails(session, "a", "b")
    rows = JobQueue(Email, strategy=strategy).claim_rows(session, owner="w", limit=2)

    complete(session, rows.fences[1])
    release(session, rows.fences[0])

    assert [status for _, status, _ in statuses(session)] == ["unclaimed", "done"]
    with pytest.raises(ArgumentError, match="fences"):
        complete(session, rows[0])


def test_every_kind_of_model_is_finished(session: Session, strategy: str) -> None:
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
        for job in claim(session, entity, owner="w", limit=5, strategy=strategy)
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


@pytest.mark.strategies("auto")
def test_a_finish_in_a_savepoint_is_undone_with_it(
    session: Session, claimed: Claim[Email], db_alias: str
) -> None:
    begin_deferred(session.connection())
    savepoint = session.begin_nested()
    complete(session, claimed)
    savepoint.rollback()

    assert [email.status for email in claimed] == ["claimed"] * 3
    complete(session, claimed)
    session.commit()
    assert [email.status for email in claimed] == ["done"] * 3


@pytest.mark.strategies("auto")
def test_a_batch_is_finished_in_as_few_statements_as_the_database_allows(
    engine: Engine, session: Session, claimed: Claim[Email], db_alias: str
) -> None:
    with statements_seen(engine) as seen:
        complete(session, claimed)

    writes = [one for one in seen if not one.startswith("SET TRANSACTION")]
    assert len(writes) == (1 if db_alias in ("sqlite", "postgresql") else 2)


def test_finishing_nothing_runs_no_statement(engine: Engine, session: Session) -> None:
    with statements_seen(engine) as seen:
        complete(session, [])
        release(session, [])
        renew(session, [])

    assert seen == []


# What is given, in whatever shape


@pytest.mark.strategies("auto")
def test_lost_and_kept_jobs_are_listed_in_the_order_in_which_they_were_given(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    one, two = (claim(session, Email, owner="w", limit=2, strategy=strategy) for _ in range(2))
    session.commit()
    release(other, [one.fences[1], two.fences[0]])
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, [two[1], one[1], one[0], two[0]])

    assert recipients(lost.value.lost) == ["b", "c"]
    assert recipients(lost.value.kept) == ["d", "a"]


def test_a_claim_of_rows_is_finished_by_another_process(session: Session, strategy: str) -> None:
    queue = JobQueue(Email, strategy=strategy)
    add_emails(session, "a", "b")
    claimed = queue.claim_rows(session, owner="w", limit=2)
    session.commit()

    carried = pickle.loads(pickle.dumps(claimed))
    queue.complete(session, carried)

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.strategies("auto")
def test_an_entity_that_left_its_session_keeps_its_fence(session: Session, strategy: str) -> None:
    add_emails(session, "a", "b")
    session.commit()
    emails = claim(session, Email, owner="w", limit=2, strategy=strategy)
    session.commit()

    make_transient(emails[0])
    complete(session, list(emails))

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.strategies("auto")
def test_an_entity_whose_insert_was_rolled_back_is_lost(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    emails = claim(session, Email, owner="w", strategy=strategy)
    session.rollback()

    with pytest.raises(ClaimLost):
        complete(session, emails[0])


@pytest.mark.strategies("auto")
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
    session: Session, other: Session, strategy: str, delete: bool
) -> None:
    add_emails(session, *"abcdefgh")
    session.commit()
    claimed = claim(session, Email, owner="w", limit=7, strategy=strategy)
    session.commit()
    last = session.scalars(select(func.max(Email.id))).one()
    session.commit()
    other.execute(select(Email).where(Email.id == last).with_for_update()).all()

    began = time.monotonic()
    complete(session, claimed, delete=delete)
    session.commit()

    assert time.monotonic() - began < 5  # to wait for a lock would take ten seconds
