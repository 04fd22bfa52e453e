"""A claim takes the first jobs of the claim order, and shows what it wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, inspect, literal_column, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, JobStatus, claim, complete
from tests.models import Account, Email, Task, add_emails, add_tasks, names, recipients
from tests.support import MARKING, Sessions, statements_seen


def test_a_claim_takes_the_first_jobs_in_key_order(session: Session, strategy: str) -> None:
    add_emails(session, "c", "a", "b", "d")

    emails = claim(session, Email, owner="w", limit=3, strategy=strategy)

    assert recipients(emails) == ["c", "a", "b"]


@pytest.mark.strategies(*MARKING)
def test_a_claimed_job_shows_status_owner_and_time(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    before = datetime.now(UTC) - timedelta(minutes=1)

    email = claim(session, Email, owner=5, strategy=strategy).first()

    assert email is not None
    assert (email.status, email.owner) == (JobStatus.CLAIMED, "5")
    assert email.owner_date is not None
    assert email.owner_date.tzinfo is UTC
    assert before < email.owner_date < before + timedelta(minutes=2)


@pytest.mark.strategies(*MARKING)
def test_what_a_claim_shows_is_what_it_wrote(
    session: Session, other: Session, strategy: str
) -> None:
    add_tasks(session, "a", "b")
    claimed = claim(session, Task, owner="w", limit=2, strategy=strategy)
    session.commit()

    written = other.scalars(select(Task).order_by(Task.id)).all()

    columns = ("status", "owner", "owner_date", "attempts", "touched", "run_at")
    assert [[getattr(task, name) for name in columns] for task in claimed] == [
        [getattr(task, name) for name in columns] for task in written
    ]
    assert claimed[0].touched == "touched"


def test_an_empty_queue_gives_an_empty_claim(session: Session, strategy: str) -> None:
    claimed = claim(session, Email, owner="w", limit=5, strategy=strategy)

    assert (len(claimed), claimed.first()) == (0, None)


def test_two_claimers_never_share_a_job(session: Session, other: Session, strategy: str) -> None:
    add_emails(session, *"abcdef")

    first = claim(session, Email, owner="1", limit=3, strategy=strategy)
    if strategy in ("compare_and_set", "update_then_select"):
        session.commit()  # one writer at a time, or an UPDATE that waits: no row is skipped
    second = claim(other, Email, owner="2", limit=3, strategy=strategy)

    assert (recipients(first), recipients(second)) == (["a", "b", "c"], ["d", "e", "f"])


def test_the_predicate_stands_inside_the_limit(session: Session, strategy: str) -> None:
    add_emails(session, *["poison"] * 20, "good")

    emails = claim(session, Email, Email.recipient == "good", owner="w", strategy=strategy)

    assert recipients(emails) == ["good"]


def test_several_criteria_are_joined_by_and(session: Session, strategy: str) -> None:
    add_emails(session, "ab", "ac", "bc")

    emails = claim(
        session,
        Email,
        Email.recipient.like("a%"),
        Email.recipient.like("%c"),
        owner="w",
        limit=5,
        strategy=strategy,
    )

    assert recipients(emails) == ["ac"]


def test_smaller_priorities_and_older_jobs_come_first(session: Session, strategy: str) -> None:
    add_tasks(session, "low1", priority=5)
    add_tasks(session, "high1", "high2", priority=-5)
    add_tasks(session, "middle")
    add_tasks(session, "low2", priority=5)

    tasks = claim(session, Task, owner="w", limit=4, strategy=strategy)

    assert names(tasks) == ["high1", "high2", "middle", "low1"]


def test_a_job_is_not_claimed_before_its_time(session: Session, strategy: str) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    add_tasks(session, "later", run_at=tomorrow, priority=-1)
    add_tasks(session, "now", "long due")
    session.execute(update(Task).where(Task.name == "long due").values(run_at=yesterday))
    session.commit()

    tasks = claim(session, Task, owner="w", limit=5, strategy=strategy)

    assert names(tasks) == ["long due", "now"]


def test_the_callers_order_replaces_the_claim_order(session: Session, strategy: str) -> None:
    add_tasks(session, "a", "c", "b", "d", priority=3)

    tasks = claim(session, Task, owner="w", limit=3, order_by=Task.name.desc(), strategy=strategy)

    assert names(tasks) == ["d", "c", "b"]


def test_an_object_loaded_before_shows_the_claimed_state(
    session: Session, other: Session, strategy: str
) -> None:
    (email,) = add_emails(session, "a")
    session.commit()
    other.execute(update(Email).values(subject="new"))
    other.commit()

    claimed = claim(session, Email, owner="w", strategy=strategy)

    assert claimed.first() is email
    assert email.subject == "new"
    assert email.status == ("unclaimed" if strategy == "held" else "claimed")


def test_pending_changes_reach_the_database_before_the_claim_could_overwrite_them(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(autoflush=False)
    (email,) = add_emails(session, "a")
    email.subject = "mine"
    session.add(Email(recipient="b"))

    claimed = claim(session, Email, owner="w", limit=5, strategy=strategy)

    assert recipients(claimed) == ["a", "b"]
    assert email.subject == "mine"


def test_a_claim_commits_and_expires_nothing_of_the_callers(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(expire_on_commit=True)
    add_emails(session, "a")
    account = Account(name="x")
    session.add(account)
    session.flush()

    claim(session, Email, owner="w", strategy=strategy)

    assert not inspect(account).expired_attributes
    session.rollback()
    assert session.scalars(select(Account)).all() == []
    assert session.scalars(select(Email.status)).all() == ["unclaimed"]


def test_a_turn_finishes_one_batch_and_claims_the_next(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = JobQueue(Email, strategy=strategy)
    first = queue.claim(session, owner="w", limit=2)

    second = queue.turn(session, first, owner="w", limit=2)
    session.commit()

    assert (recipients(first), recipients(second)) == (["a", "b"], ["c", "d"])
    done = other.scalars(select(Email.recipient).where(Email.status == "done"))
    assert sorted(done) == ["a", "b"]


def test_a_queue_with_statuses_of_its_own_claims_jobs_in_these(
    session: Session, strategy: str
) -> None:
    emails = add_emails(session, "a", "b")
    session.execute(update(Email).where(Email.id == emails[1].id).values(status="rendered"))
    session.commit()
    queue = JobQueue(Email, ready="rendered", during="sending", then="sent", strategy=strategy)

    claimed = queue.claim(session, owner="w", limit=5)
    queue.complete(session, claimed)

    assert recipients(claimed) == ["b"]
    assert claimed[0].status == "sent"


@pytest.mark.strategies(*MARKING)
def test_failed_and_released_jobs_return_to_the_queues_own_status(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "a", "b", status="rendered")
    queue = JobQueue(Task, ready="rendered", during="sending", strategy=strategy)
    first, second = queue.claim(session, owner="w", limit=2)

    queue.fail(session, first, error="no")
    queue.release(session, second)

    assert [first.status, second.status] == ["rendered", "rendered"]


@pytest.mark.strategies("auto")
@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
def test_a_limit_below_one_is_refused(session: Session, strategy: str, limit: object) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        claim(session, Email, owner="w", limit=limit, strategy=strategy)  # type: ignore[arg-type]


@pytest.mark.strategies("auto")
@pytest.mark.parametrize("owner", ["", "x" * 65, "a~b", 1.5])
def test_an_owner_that_cannot_be_stored_is_refused(
    session: Session, strategy: str, owner: object
) -> None:
    with pytest.raises(ArgumentError, match="owner"):
        claim(session, Email, owner=owner, strategy=strategy)  # type: ignore[arg-type]


@pytest.mark.strategies(*MARKING)
def test_a_claim_that_marks_needs_an_owner(session: Session, strategy: str) -> None:
    with pytest.raises(ArgumentError, match="owner= is needed"):
        claim(session, Email, strategy=strategy)


def test_only_the_clock_of_the_database_counts(
    session: Session, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tasks(session, "a")

    with statements_seen(session.get_bind()) as seen:  # type: ignore[arg-type]
        claimed = claim(session, Task, owner="w", strategy=strategy)
        complete(session, claimed)

    database_clocks = (
        "clock_timestamp()",
        "statement_timestamp()",
        "UTC_TIMESTAMP(6)",
        "strftime(",
    )
    assert any(clock in statement for statement in seen for clock in database_clocks)
    assert not any("CURRENT_TIMESTAMP" in statement for statement in seen)


def test_every_job_of_a_claim_has_the_same_time(session: Session, strategy: str) -> None:
    if strategy == "held":
        return  # this strategy writes no owner
    add_emails(session, *"abcdefghij")

    claimed = claim(session, Email, owner="w", limit=10, strategy=strategy)

    assert len({email.owner_date for email in claimed}) == 1


def test_literal_percent_signs_in_a_predicate_work(session: Session, strategy: str) -> None:
    add_emails(session, "50%", "50")

    emails = claim(
        session,
        Email,
        Email.recipient == literal_column("'50%'"),
        owner="w",
        limit=5,
        strategy=strategy,
    )

    assert recipients(emails) == ["50%"]


def test_bulk_inserts_are_jobs_too(session: Session, strategy: str) -> None:
    session.execute(insert(Email), [{"recipient": "a"}, {"recipient": "b"}])

    assert recipients(claim(session, Email, owner="w", limit=5, strategy=strategy)) == ["a", "b"]
