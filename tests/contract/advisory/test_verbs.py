"""The verbs after a claim by advisory locks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import (
    ORMExecuteState,
    Session,
    with_loader_criteria,
)

from sa_jobqueue import (
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
    add_subscriptions,
    claim_subscriptions,
    ids,
    kept,
)
from tests.models import Account, Email, Letter, Task, add_emails, add_tasks, recipients
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


def test_without_the_mixin_a_finish_writes_nothing_and_the_caller_marks_the_rows(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 3)
    rows = JobQueue(Subscription, NOT_MAILED, strategy="advisory").claim_rows(mailing)
    second, third = claim_subscriptions(mailing, limit=3)
    mailing.delete(second)
    third.mailed = 1

    with statements_seen(engine) as seen:
        complete(mailing, [*rows.fences, second, third])
        mailing.commit()

    assert [line.split()[0] for line in seen] == ["UPDATE", "DELETE"]
    assert kept(engine) == 0
    assert ids(mailing.scalars(select(Subscription).order_by(Subscription.id))) == [1, 3]
    assert set(rows[0]._mapping) == {"id", "kind", "mailed", "divisor"}


def test_a_job_queue_claims_rows_and_turns(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, *"abcd")
    queue = JobQueue(Email, Email.recipient != "c", strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    turned = queue.turn(mailing, rows, limit=2, delete=True)

    assert [row.recipient for row in rows] == ["a", "b"]
    assert recipients(turned) == ["d"]
    assert kept(engine) == 3
    mailing.commit()
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


def test_relationships_load_and_lock_nothing(engine: Engine, mailing: Session) -> None:
    mailing.add_all([Letter(account=Account(name="x")), Letter()])
    mailing.commit()

    letters = claim(mailing, Letter, strategy="advisory", limit=2)
    mailing.expunge_all()

    assert [letter.account and letter.account.name for letter in letters] == ["x", None]
    assert kept(engine) == 2
