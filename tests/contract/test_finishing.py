"""What the fence promises: a finish reaches exactly the rows of its own claim."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, func, inspect, select, update
from sqlalchemy.orm import Session, make_transient
from sqlalchemy.orm.exc import StaleDataError

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    NotClaimed,
    cancel,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    fail,
    fence_of,
    prune,
    release,
    renew,
    reprioritize,
    retry,
    with_fence,
)
from tests.models import (
    Animal,
    Document,
    Dog,
    Email,
    Message,
    Order,
    Pair,
    Task,
    add_emails,
    add_tasks,
    recipients,
)
from tests.support import statements_seen

Sessions = Callable[..., Session]
MARKING = ("skip_locked", "candidates", "update_then_select", "compare_and_set")

pytestmark = pytest.mark.strategies(*MARKING)


@pytest.fixture
def claimed(session: Session, strategy: str) -> Claim[Email]:
    """Three emails, claimed by w and committed."""
    add_emails(session, "a", "b", "c")
    claimed = claim(session, Email, owner="w", limit=3, strategy=strategy)
    session.commit()
    return claimed


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


def statuses(session: Session) -> list[tuple[str, str, str | None]]:
    found = session.execute(select(Email.recipient, Email.status, Email.owner).order_by(Email.id))
    return [(row.recipient, row.status, row.owner) for row in found]


def test_complete_finishes_a_batch(session: Session, other: Session, claimed: Claim[Email]) -> None:
    complete(session, claimed)
    session.commit()

    assert statuses(other) == [(r, "done", "w") for r in "abc"]
    assert [email.status for email in claimed] == ["done"] * 3


def test_complete_may_delete(session: Session, other: Session, claimed: Claim[Email]) -> None:
    complete(session, claimed, delete=True)

    assert [inspect(email).deleted for email in claimed] == [True] * 3
    assert not any(email in session for email in claimed)
    session.commit()
    assert statuses(other) == []


def test_a_deleted_job_is_back_after_a_rollback(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    complete(session, claimed, delete=True)
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


def test_after_a_rollback_nothing_of_the_batch_happened(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    take_away(other, claimed[1])

    with pytest.raises(ClaimLost):
        complete(session, claimed, delete=True)
    session.rollback()

    assert [status for _, status, _ in statuses(other)] == ["claimed"] * 3


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


def test_a_second_finish_is_lost(session: Session, claimed: Claim[Email]) -> None:
    complete(session, claimed)
    session.commit()

    with pytest.raises(ClaimLost):
        complete(session, claimed)


def test_an_entity_that_was_not_claimed_itself_is_refused(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    same = other.get(Email, claimed[0].id)

    with pytest.raises(NotClaimed, match="fence"):
        complete(other, [same])

    assert [status for _, status, _ in statuses(other)] == ["claimed"] * 3


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


def test_a_finish_accepts_a_renewal_made_elsewhere(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    renew(other, [fence_of(email) for email in claimed])
    other.commit()

    complete(session, claimed)
    session.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


def test_a_finish_accepts_a_renewal_that_was_rolled_back(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    renew(other, [fence_of(email) for email in claimed])
    other.rollback()

    complete(session, claimed)
    session.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


def test_a_renewal_starts_the_lease_again(session: Session, claimed: Claim[Email]) -> None:
    before = claimed[0].owner_date

    renew(session, claimed)

    assert before is not None
    assert claimed[0].owner_date is not None
    assert claimed[0].owner_date >= before
    assert fence_of(claimed[0]).owner_date == claimed[0].owner_date
    session.commit()
    assert session.scalars(select(Email.owner_date)).first() is not None


def test_a_copy_of_the_fence_from_before_a_renewal_is_lost(
    session: Session, claimed: Claim[Email]
) -> None:
    old = pickle.loads(pickle.dumps(fence_of(claimed[0])))
    renew(session, claimed[0])
    if old.owner_date == claimed[0].owner_date:
        return  # SQLite's clock has milliseconds: it was the same one

    with pytest.raises(ClaimLost):
        complete(session, old)


def test_release_gives_back_and_takes_the_attempt_back(
    session: Session, other: Session, strategy: str
) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    assert task is not None
    assert task.attempts == 1

    release(session, task)
    session.commit()

    again = other.scalars(select(Task)).one()
    assert (again.status, again.owner, again.owner_date, again.attempts) == (
        "unclaimed",
        None,
        None,
        0,
    )
    assert claim(other, Task, owner="x", strategy=strategy).first() is again


def test_a_failed_job_is_tried_again_while_attempts_remain(session: Session, strategy: str) -> None:
    add_tasks(session, "a", max_attempts=2)
    states = []

    for _ in range(2):
        task = claim(session, Task, owner="w", strategy=strategy).first()
        assert task is not None
        fail(session, task, error=ValueError("no luck"))
        session.commit()
        states.append((task.status, task.owner, task.attempts, task.last_error))

    assert states == [
        ("unclaimed", None, 1, "ValueError: no luck"),
        ("failed", "w", 2, "ValueError: no luck"),
    ]


def test_a_job_without_a_limit_of_attempts_is_tried_until_it_succeeds(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "a")

    for _ in range(5):
        task = claim(session, Task, owner="w", strategy=strategy).first()
        assert task is not None
        fail(session, task)
        session.commit()

    (task,) = session.scalars(select(Task))
    assert (task.status, task.attempts) == ("unclaimed", 5)


def test_a_failing_head_job_does_not_hold_up_those_behind_it(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "bad", "good")
    bad = claim(session, Task, owner="w", strategy=strategy)
    fail(session, bad, retry_in=timedelta(hours=1))
    session.commit()

    following = claim(session, Task, owner="w", limit=2, strategy=strategy)

    assert [task.name for task in following] == ["good"]
    assert bad[0].run_at > datetime.now(UTC) + timedelta(minutes=58)


def test_without_a_schedule_those_tried_less_often_come_first(
    session: Session, strategy: str
) -> None:
    session.add_all([Order(), Order()])  # RetryMixin, and nothing that delays a failed job
    session.commit()
    tried = []

    for _ in range(4):
        order = claim(session, Order, owner="w", strategy=strategy).first()
        assert order is not None
        tried.append(order.id)
        fail(session, order)
        session.commit()

    first, second = sorted(set(tried))
    assert tried == [first, second, first, second]


def test_without_retry_mixin_a_failed_job_is_failed(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    fail(session, claimed[0], error="no")
    session.commit()

    assert statuses(other)[0] == ("a", "failed", "w")


def test_retry_in_needs_a_schedule(session: Session, claimed: Claim[Email]) -> None:
    with pytest.raises(ArgumentError, match="ScheduleMixin"):
        fail(session, claimed, retry_in=timedelta(seconds=1))


def test_give_up_cancels_our_own_claim(session: Session, strategy: str) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    assert task is not None

    cancel_claimed(session, task, reason="nobody wants it")
    session.commit()

    session.refresh(task)
    assert (task.status, task.owner, task.last_error) == ("cancelled", "w", "nobody wants it")


def test_cancel_takes_unclaimed_jobs_only_and_says_which(
    session: Session, other: Session, strategy: str
) -> None:
    a, b = add_emails(session, "a", "b")
    claim(other, Email, Email.recipient == "a", owner="w", strategy=strategy)
    other.commit()

    cancelled = cancel(session, [a, b])
    session.commit()

    assert cancelled == [b]
    assert statuses(other) == [("a", "claimed", "w"), ("b", "cancelled", None)]
    assert [a.status, b.status] == ["claimed", "cancelled"]


def test_retry_brings_finished_jobs_back_with_new_attempts(session: Session, strategy: str) -> None:
    (a,) = add_tasks(session, "a", max_attempts=1)
    fail(session, claim(session, Task, owner="w", strategy=strategy))
    assert a.status == "failed"

    assert retry(session, [a]) == [a]

    assert (a.status, a.owner, a.attempts) == ("unclaimed", None, 0)
    assert retry(session, a) == []


def test_reprioritize_changes_unclaimed_jobs_only(session: Session, strategy: str) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    claim(session, Task, owner="w", strategy=strategy)

    assert reprioritize(session, [a, c], -3) == [c]

    assert (a.priority, b.priority, c.priority) == (0, 0, -3)
    with pytest.raises(ArgumentError, match="integer"):
        reprioritize(session, [c], 10**6)
    with pytest.raises(ArgumentError, match="PriorityMixin"):
        reprioritize(session, add_emails(session, "x"), 1)


def test_prune_deletes_finished_jobs_in_bounded_batches(
    session: Session, claimed: Claim[Email]
) -> None:
    complete(session, claimed)
    add_emails(session, "waiting")

    assert prune(session, Email, older_than=timedelta(hours=1)) == 0
    assert prune(session, Email, older_than=timedelta(seconds=-5), limit=2) == 2
    assert prune(session, Email, older_than=timedelta(seconds=-5), limit=2) == 1

    session.expire_all()
    assert [recipient for recipient, _, _ in statuses(session)] == ["waiting"]
    with pytest.raises(ArgumentError, match="finished"):
        prune(session, Email, older_than=timedelta(0), statuses=["unclaimed"])


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


def test_a_finish_in_a_savepoint_is_undone_with_it(
    session: Session, claimed: Claim[Email], db_alias: str
) -> None:
    if db_alias == "sqlite":  # its driver begins nothing before a SAVEPOINT
        session.connection().exec_driver_sql("BEGIN")
    savepoint = session.begin_nested()
    complete(session, claimed)
    savepoint.rollback()

    assert [email.status for email in claimed] == ["claimed"] * 3
    complete(session, claimed)
    session.commit()
    assert [email.status for email in claimed] == ["done"] * 3


def test_a_batch_is_finished_in_as_few_statements_as_the_engine_allows(
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


def test_lost_and_kept_are_told_in_the_order_in_which_they_were_given(
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


def test_an_entity_that_left_its_session_keeps_its_fence(session: Session, strategy: str) -> None:
    add_emails(session, "a", "b")
    session.commit()
    emails = claim(session, Email, owner="w", limit=2, strategy=strategy)
    session.commit()

    make_transient(emails[0])
    complete(session, list(emails))

    assert set(session.scalars(select(Email.status))) == {"done"}


def test_an_entity_whose_insert_was_rolled_back_is_lost(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    emails = claim(session, Email, owner="w", strategy=strategy)
    session.rollback()

    with pytest.raises(ClaimLost):
        complete(session, emails[0])


@pytest.mark.parametrize("delete", [True, False])
def test_of_rows_too_the_lost_one_alone_is_lost(
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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

    assert time.monotonic() - began < 5  # a lock is waited for ten seconds
