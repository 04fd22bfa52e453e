"""Which rows reap() looks at, and how many it takes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import ArgumentError, JobQueue, claim, complete, fence_of, reap
from sa_jobqueue.model import keys
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.verbs import Reaped, ReapReason
from sa_jobqueue.verbs import reap as reap_module
from tests.contract.reap.support import claimed, grow_old, of_the_dead, reaped, rows, statuses
from tests.models import (
    Account,
    Animal,
    Cat,
    Document,
    Dog,
    Email,
    Message,
    Order,
    Pair,
    Render,
    Task,
    add_emails,
    add_renders,
    add_tasks,
)
from tests.support import SERVERS, Sessions

HOUR = timedelta(hours=1)
FORCE = timedelta(0)
PLAIN = "mailer-1"


# Which rows


def test_only_claimed_rows_of_this_entity_are_touched(session: Session) -> None:
    add_emails(session, "a")
    add_tasks(session, "a", "b")
    emails, tasks = claimed(session, Email, PLAIN), claimed(session, Task, PLAIN)
    complete(session, tasks[0])
    add_tasks(session, "c")

    found = reaped(session, Task, max_runtime=FORCE)

    assert [job.identity for job in found.jobs] == [fence_of(tasks[1]).identity]
    assert statuses(session, Task) == ["done", "unclaimed", "unclaimed"]
    complete(session, emails)


def test_a_queue_of_its_own_within_a_table_reaps_its_own_rows(session: Session) -> None:
    session.add_all([Message(sequence=1, channel="sms"), Message(sequence=2, channel="fax")])
    session.commit()
    claimed(session, Message, PLAIN)
    grow_old(session, Message, HOUR)

    found = JobQueue(Message, Message.channel == "fax").reap(session)

    session.commit()
    assert len(found) == 1
    assert rows(session, Message, Message.channel, Message.status) == [
        ("sms", "claimed"),
        ("fax", "unsent"),
    ]


def test_a_row_that_left_the_criteria_since_its_claim_is_reaped(session: Session) -> None:
    session.add(Message(sequence=1, channel="sms"))
    session.commit()
    queue = JobQueue(Message, Message.channel == "sms", Message.sequence < 5)
    assert queue.claim(session, owner=PLAIN)
    session.execute(update(Message).values(sequence=9))
    grow_old(session, Message, HOUR)

    assert len(queue.reap(session)) == 1


def test_a_queue_reaps_its_own_statuses_back_to_its_ready_status(session: Session) -> None:
    add_emails(session, "a", "b")
    session.execute(update(Email).where(Email.recipient == "a").values(status="checked"))
    mailing = JobQueue(Email, ready="checked", during="sending", then="sent")
    assert mailing.claim(session, owner=PLAIN)
    session.commit()
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)

    assert len(mailing.reap(session)) == 1
    session.commit()

    assert statuses(session) == ["checked", "claimed"]


@pytest.mark.parametrize(
    "of",
    [reap, lambda session, entity: JobQueue(entity).reap(session)],
    ids=["reap", "JobQueue.reap"],
)
def test_a_job_that_its_owner_has_moved_on_is_reaped(
    session: Session, of: Callable[..., Reaped]
) -> None:
    first, _ = add_renders(session, 2)
    claimed(session, Render, PLAIN)
    session.execute(update(Render).where(Render.id == first.id).values(status="running"))
    grow_old(session, Render, HOUR)

    assert len(of(session, Render)) == 2
    session.commit()

    assert statuses(session, Render) == ["unclaimed"] * 2


def test_the_application_restores_what_a_handler_had_set_in_the_transaction_of_the_reap(
    session: Session, other: Session
) -> None:
    add_renders(session, 1)
    claimed(session, Render, PLAIN)
    session.execute(update(Render).values(max_attempts=1, result="by w"))
    add_renders(session, 2)
    claimed(session, Render, PLAIN)
    session.execute(update(Render).values(result="by w"))
    grow_old(session, Render, HOUR)

    found = reap(session, Render)
    returned = [job.identity[0] for job in found.jobs if not job.failed]
    session.execute(update(Render).where(Render.id.in_(returned)).values(result="for any"))
    session.commit()

    assert rows(other, Render, Render.status, Render.result) == [
        ("failed", "by w"),
        ("unclaimed", "for any"),
        ("unclaimed", "for any"),
    ]


@pytest.mark.only_on(*SERVERS)
def test_held_claims_leave_nothing_to_reap(session: Session, other: Session) -> None:
    add_emails(session, "a")
    held = claim(session, Email, strategy="held")

    assert not reap(other, Email, max_runtime=FORCE)

    complete(session, held)
    session.commit()


@pytest.mark.parametrize("entity", [Order, Pair, Document, Cat, Dog, Animal])
def test_every_kind_of_mapping_is_reaped(session: Session, entity: type[Any]) -> None:
    session.add_all(
        [
            Order(),
            Pair(left=1, right="x"),
            Document(created=1),
            Cat(),
            Dog(trick="sit"),
        ]
    )
    session.commit()
    jobs = claimed(session, entity, PLAIN)
    grow_old(session, entity, HOUR)

    found = reaped(session, entity)

    assert jobs
    assert {job.identity for job in found.jobs} == {fence_of(job).identity for job in jobs}
    status = mapping_of(entity).attributes["status"]
    assert {getattr(job, status) for job in jobs} == {"unclaimed"}


def test_a_subclass_reaps_its_own_rows_only(session: Session) -> None:
    session.add_all([Cat(), Dog(trick="sit")])
    session.commit()
    claimed(session, Animal, PLAIN)
    grow_old(session, Animal, HOUR)

    assert len(reaped(session, Dog)) == 1

    states = dict(rows(session, Animal, Animal.kind, Animal.status))
    assert states == {"cat": "claimed", "dog": "unclaimed"}


def test_criteria_of_the_session_hold(new_session: Sessions) -> None:
    session = new_session()
    add_emails(session, "tenant1", "tenant2")
    claimed(session, Email, PLAIN)
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        if state.is_select:
            state.statement = state.statement.options(
                with_loader_criteria(Email, Email.recipient == "tenant2")
            )

    assert len(reaped(tenant, max_runtime=FORCE)) == 1

    assert statuses(session) == ["claimed", "unclaimed"]


@pytest.mark.driver_begins
def test_autocommit_reaps_in_a_transaction_of_its_own(
    engine: Engine, new_session: Sessions
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    add_tasks(session, "a", "b", max_attempts=1)
    claim(session, Task, owner=PLAIN)

    assert reap(session, Task, max_runtime=FORCE).failed == 1

    assert statuses(new_session(), Task) == ["failed", "unclaimed"]


@pytest.mark.driver_begins
def test_autocommit_writes_all_of_a_batch_or_nothing(engine: Engine, new_session: Sessions) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    add_tasks(session, "last", max_attempts=1)
    add_tasks(session, "again", max_attempts=2)
    claim(session, Task, owner=PLAIN, limit=2)

    def fail_to_fail(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE") and "status='failed'" in statement:
            raise RuntimeError("power cut")

    event.listen(engine, "before_cursor_execute", fail_to_fail)
    try:
        with pytest.raises(RuntimeError, match="power cut"):
            reap(session, Task, max_runtime=FORCE)
    finally:
        event.remove(engine, "before_cursor_execute", fail_to_fail)

    assert statuses(new_session(), Task) == ["claimed", "claimed"]


# The limit


def test_a_call_takes_back_no_more_than_its_limit_the_oldest_first(session: Session) -> None:
    add_emails(session, "a", "b", "c")
    queue = JobQueue(Email, during="sending")  # not every database has an index of this status
    queue.claim(session, owner=PLAIN, limit=3)
    for hours, recipient in enumerate("acb", start=1):
        grow_old(session, Email, hours * HOUR, Email.recipient == recipient)

    first = queue.reap(session, limit=2)
    second = queue.reap(session, limit=2)

    assert (len(first), first.more, len(second), second.more) == (2, True, 1, False)
    oldest = session.scalars(
        select(Email.recipient).where(Email.id.in_([job.identity[0] for job in first.jobs]))
    )
    assert sorted(oldest) == ["b", "c"]


def test_the_limit_holds_over_all_reasons(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcd")
    of_the_dead(engine, session, Email, 2)
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)

    found = reaped(session, limit=3)

    assert [job.reason for job in found.jobs] == [ReapReason.DEAD_OWNER] * 2 + [
        ReapReason.LEASE_OVER
    ]
    assert found.more


def test_more_rows_and_owners_than_a_statement_takes_are_reaped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 3)
    monkeypatch.setattr(reap_module, "MOST_OWNERS", 2)
    add_emails(session, *"abcdefghij")
    for number in range(5):
        claimed(session, Email, f"w{number}", 2)
    claim(session, Email, owner="w9")
    grow_old(session, Email, HOUR)

    assert len(reaped(session)) == 10

    assert set(statuses(session)) == {"unclaimed"}


@pytest.mark.parametrize(
    "how",
    [
        {"lease": timedelta(0)},
        {"lease": 60},
        {"max_runtime": timedelta(seconds=-1)},
        {"max_runtime": 0},
        {"limit": 0},
        {"limit": True},
    ],
)
def test_invalid_arguments_are_refused(session: Session, how: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        reap(session, Email, **how)
    with pytest.raises(ArgumentError):
        JobQueue(Email).reap(session, **how)


def test_a_class_that_is_no_queue_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="JobMixin"):
        reap(session, Account)
