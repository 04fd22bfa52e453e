"""The verbs after a claim by advisory locks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, ForeignKey, event, select, update
from sqlalchemy.orm import (
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    relationship,
    with_loader_criteria,
)

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel_claimed,
    claim,
    complete,
    fail,
    release,
    renew,
)
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    kept,
)
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import statements_seen

pytestmark = pytest.mark.only_on("postgresql")


def test_a_queue_with_all_mixins_is_finished_as_after_any_claim(
    engine: Engine, mailing: Session
) -> None:
    add_tasks(mailing, "done", "failed", "given up", "released", "renewed", max_attempts=2)
    claimed = claim(mailing, Task, strategy="advisory", owner="w", limit=5)
    done, failed, cancelled_claimed, released, renewed = claimed
    mailing.commit()

    complete(mailing, done)
    fail(mailing, failed, error="no route")
    cancel_claimed(mailing, cancelled_claimed, reason="bounced")
    release(mailing, released)
    renew(mailing, renewed)
    assert kept(engine) == 4
    mailing.commit()

    assert kept(engine) == 1
    complete(mailing, renewed)
    mailing.commit()
    columns = (Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert [tuple(row) for row in mailing.execute(select(*columns).order_by(Task.id))] == [
        ("done", "done", "w", 1, None),
        ("failed", "unclaimed", None, 1, "no route"),
        ("given up", "cancelled", "w", 1, "bounced"),
        ("released", "unclaimed", None, 0, None),
        ("renewed", "done", "w", 1, None),
    ]
    assert (done.status, failed.attempts) == ("done", 1)


def test_finished_rows_of_a_queue_can_be_deleted(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, "a", "b")
    claimed = claim(mailing, Email, strategy="advisory", limit=2)

    complete(mailing, claimed[0], delete=True)
    mailing.commit()

    assert list(mailing.scalars(select(Email.recipient))) == ["b"]
    assert kept(engine) == 1


def test_without_the_mixin_a_finish_writes_nothing_and_the_caller_marks_the_rows(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 3)
    first, second, third = claim_subscriptions(mailing, limit=3)
    first.mailed = 1
    mailing.delete(second)

    with statements_seen(engine) as seen:
        complete(mailing, [first, second, third])
        mailing.commit()

    assert [line.split()[0] for line in seen] == ["UPDATE", "DELETE"]
    assert kept(engine) == 0
    assert ids(mailing.scalars(select(Subscription).order_by(Subscription.id))) == [1, 3]


@pytest.mark.parametrize(
    ("verb", "way_out"),
    [
        (fail, "Mark the row yourself and complete"),
        (cancel_claimed, "Mark the row yourself and complete"),
        (lambda session, jobs: complete(session, jobs, delete=True), r"session\.delete\(\)"),
    ],
)
def test_what_needs_columns_is_refused_without_them(
    engine: Engine, mailing: Session, verb: Callable[..., None], way_out: str
) -> None:
    add_subscriptions(mailing, 1)
    claimed = claim_subscriptions(mailing)

    with pytest.raises(ArgumentError, match=way_out):
        verb(mailing, claimed)

    assert kept(engine) == 1
    renew(mailing, claimed)
    release(mailing, claimed)
    assert kept(engine) == 0


def test_a_job_queue_claims_rows_and_turns(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, *"abcd")
    queue = JobQueue(Email, Email.recipient != "c", strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    turned = queue.turn(mailing, rows, limit=2)

    assert [row.recipient for row in rows] == ["a", "b"]
    assert recipients(turned) == ["d"]
    assert kept(engine) == 3
    mailing.commit()
    assert kept(engine) == 1


def test_other_classes_are_claimed_as_rows_too(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 2)
    queue = JobQueue(Subscription, NOT_MAILED, strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    queue.complete(mailing, rows.fences[0])
    mailing.commit()

    assert set(rows[0]._mapping) == {"id", "kind", "mailed", "divisor"}
    assert kept(engine) == 1


def test_criteria_of_the_sessions_hooks_hold_and_starve_nobody(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 50, kind=1)
    mailing.execute(update(Subscription).where(Subscription.id > 40).values(kind=2))
    mailing.commit()

    @event.listens_for(mailing, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        if state.is_select:
            ours = with_loader_criteria(Subscription, Subscription.kind == 2)
            state.statement = state.statement.options(ours)

    claimed = claim_subscriptions(mailing, limit=5)

    assert ids(claimed) == [41, 42, 43, 44, 45]
    assert (claimed.lost, kept(engine)) == (0, 5)


class Letter(SubscriptionBase):
    """A class whose relationship loads eagerly, by a join."""

    __tablename__ = "subscribed_letter"
    id: Mapped[int] = mapped_column(primary_key=True)
    subscription_id: Mapped[int | None] = mapped_column(ForeignKey("subscription.id"))
    subscription: Mapped[Subscription | None] = relationship(lazy="joined")


def test_relationships_load_and_lock_nothing(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 1)
    mailing.add_all([Letter(subscription_id=1), Letter()])
    mailing.commit()

    letters = claim(mailing, Letter, strategy="advisory", limit=2, order_by=Letter.id)
    mailing.expunge_all()

    assert [letter.subscription and letter.subscription.id for letter in letters] == [1, None]
    assert kept(engine) == 2
