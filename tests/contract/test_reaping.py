"""reap(): whose claims are taken back, when, and what becomes of the jobs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    Owner,
    OwnerState,
    Reaped,
    ReapedJob,
    ReapReason,
    claim,
    complete,
    connection_owner,
    fail,
    fence_of,
    is_transient,
    owner_state,
    reap,
    renew,
)
from sa_jobqueue.dialects.clock import as_utc, utc_now
from sa_jobqueue.model import keys
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.verbs import reap as reap_module
from tests.innodb_locks import locked_rows
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
    Task,
    add_emails,
    add_tasks,
    names,
    recipients,
)
from tests.support import impatient, statements_seen

from .test_interleaved import before, unless_refused
from .test_plans import fill, rows_read

Sessions = Callable[..., Session]

HOUR = timedelta(hours=1)
FORCE = timedelta(0)
PLAIN = "mailer-1"


def claimed(session: Session, entity: type[Any], owner: Any, limit: int = 100) -> Claim[Any]:
    """Commit a claim of all that waits."""
    found = claim(session, entity, owner=owner, limit=limit)
    session.commit()
    return found


def of_the_dead(engine: Engine, session: Session, entity: type[Any], limit: int = 100) -> str:
    """Commit claims of an Owner that dies; return its name."""
    with Owner(engine, "victim") as owner:
        claimed(session, entity, owner, limit)
        return owner.name


def grow_old(session: Session, entity: type[Any], age: timedelta, *where: Any) -> None:
    """Have claims look as if they had been made so long ago, by the database's clock."""
    column = mapping_of(entity).column("owner_date")
    past = utc_now(-(age // timedelta(microseconds=1)))
    session.connection().execute(
        update(column.table).where(column.is_not(None), *where).values({column: past})
    )
    session.commit()
    session.expire_all()


def reaped(session: Session, entity: type[Any] = Email, **how: Any) -> Reaped:
    """Commit a reap."""
    found = reap(session, entity, **how)
    session.commit()
    return found


def rows(session: Session, entity: type[Any], *columns: Any) -> list[tuple[Any, ...]]:
    """Read columns as they are in the database, past what the session has loaded."""
    session.rollback()
    found = session.execute(select(*columns).order_by(*mapping_of(entity).keys)).all()
    session.rollback()  # so that a verb after this begins a transaction of its own
    return [tuple(row) for row in found]


def statuses(session: Session, entity: type[Any] = Email) -> list[str]:
    return [status for (status,) in rows(session, entity, mapping_of(entity).attribute("status"))]


# Whose claims, and when


def test_the_claims_of_a_dead_owner_are_taken_back_at_once(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    name = of_the_dead(engine, session, Email)

    found = reaped(session)

    assert (len(found), found.by_owner, found.unclaimed, found.failed) == (2, {name: 2}, 2, 0)
    assert {job.reason for job in found.jobs} == {ReapReason.DEAD_OWNER}
    assert (
        rows(session, Email, Email.status, Email.owner, Email.owner_date)
        == [("unclaimed", None, None)] * 2
    )
    assert recipients(claim(session, Email, owner="w", limit=5)) == ["a", "b"]


def test_the_claims_of_a_living_owner_are_never_taken_for_their_age(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        claimed(session, Email, owner)
        grow_old(session, Email, 100 * HOUR)

        assert not reaped(session, lease=HOUR)

    assert statuses(session) == ["claimed"]


def test_an_explicit_max_runtime_takes_the_claims_of_the_living_too(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    with Owner(engine) as owner:
        claimed(session, Email, owner)
        grow_old(session, Email, 2 * HOUR, Email.recipient == "a")

        found = reaped(session, max_runtime=HOUR)

        assert found.by_owner == {owner.name: 1}
    assert [job.reason for job in found.jobs] == [ReapReason.MAX_RUNTIME_OVER]
    assert statuses(session) == ["unclaimed", "claimed"]


def test_by_force_all_claims_are_taken_back(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b", "c")
    with Owner(engine) as owner:
        claimed(session, Email, owner, 1)
        claimed(session, Email, PLAIN, 1)
        session.execute(update(Email).where(Email.recipient == "c").values(status="claimed"))

        assert reaped(session, max_runtime=FORCE).by_owner == {owner.name: 1, PLAIN: 1, None: 1}

    assert statuses(session) == ["unclaimed"] * 3


def test_the_claims_of_an_unknown_owner_wait_for_the_lease(session: Session) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)

    assert not reaped(session)
    grow_old(session, Email, timedelta(minutes=11))
    assert not reaped(session, lease=HOUR)
    found = reaped(session)

    (identity,) = rows(session, Email, Email.id)
    assert found.jobs == (ReapedJob(identity, PLAIN, ReapReason.LEASE_OVER, False),)
    assert statuses(session) == ["unclaimed"]


def test_claims_without_an_owner_wait_for_the_lease(session: Session) -> None:
    add_emails(session, "a", "b")
    by_hand = {"status": "claimed", "owner_date": utc_now()}
    session.execute(update(Email).values(by_hand))
    grow_old(session, Email, HOUR, Email.recipient == "a")

    found = reaped(session)

    assert (found.by_owner, found.jobs[0].reason) == ({None: 1}, ReapReason.LEASE_OVER)
    assert statuses(session) == ["unclaimed", "claimed"]


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_the_claims_of_a_closed_connection_wait_for_the_lease_all_the_same(
    engine: Engine, session: Session
) -> None:
    """A pool closes connections while its process lives and works on."""
    add_emails(session, "a")
    with engine.connect() as connection:
        connection.detach()
        with Session(connection) as bound:
            name = connection_owner(bound)
            claimed(bound, Email, name)
    wait_until_gone(session, name)

    assert not reaped(session)
    grow_old(session, Email, timedelta(minutes=11))

    found = reaped(session)
    assert [(job.owner, job.reason) for job in found.jobs] == [(name, ReapReason.DEAD_OWNER)]


def wait_until_gone(session: Session, name: str) -> None:
    """Wait until the server has noticed the end of a connection."""
    deadline = time.monotonic() + 10
    while owner_state(session, name) is not OwnerState.DEAD:
        assert time.monotonic() < deadline
        session.rollback()
        threading.Event().wait(0.01)


def test_a_renewed_claim_is_not_taken_when_the_lease_of_its_claim_is_over(
    session: Session,
) -> None:
    add_emails(session, "a", "b")
    emails = claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    fence = fence_of(emails[0])
    fence.token.dates.append(emails[0].owner_date)  # the time that we have just given it
    renew(session, emails[0])
    session.commit()

    found = reaped(session)

    assert [job.identity for job in found.jobs] == [fence_of(emails[1]).identity]
    complete(session, emails[0])


@pytest.mark.parametrize("lease", [None, timedelta(minutes=1)])
def test_a_queue_has_its_own_lease(session: Session, lease: timedelta | None) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, timedelta(minutes=5))

    found = JobQueue(Email, lease=lease).reap(session)

    assert len(found) == (0 if lease is None else 1)


def test_a_claim_of_a_row_that_nobody_dated_is_left_alone(session: Session) -> None:
    add_emails(session, "a")
    session.execute(update(Email).values(status="claimed", owner="hand"))
    session.commit()

    assert not reaped(session, lease=timedelta(microseconds=1))


# What becomes of the jobs


def test_attempts_stay_counted_and_used_up_ones_fail_with_the_reason(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "last", max_attempts=1)
    add_tasks(session, "again", max_attempts=2)
    add_tasks(session, "endless", max_attempts=None)
    name = of_the_dead(engine, session, Task)
    grow_old(session, Task, HOUR)
    now = as_utc(session.scalars(select(utc_now())).one())

    found = reaped(session, Task)

    said = f"reaped, dead owner: {name}"
    state = rows(session, Task, Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert state == [
        ("last", "failed", name, 1, said),
        ("again", "unclaimed", None, 1, said),
        ("endless", "unclaimed", None, 1, said),
    ]
    assert (found.failed, found.unclaimed) == (1, 2)
    assert {job.failed: job.identity for job in found.jobs}[True] == rows(session, Task, Task.id)[0]
    (date,) = session.scalars(select(Task.owner_date).where(Task.status == "failed"))
    assert date is not None
    assert as_utc(date) >= now


@pytest.mark.parametrize(
    ("owner", "how", "said"),
    [
        (PLAIN, {}, "reaped, lease over: mailer-1"),
        (None, {}, "reaped, lease over: nobody"),
        (PLAIN, {"max_runtime": FORCE, "lease": 9 * HOUR}, "reaped, max_runtime over: mailer-1"),
    ],
)
def test_the_reason_is_kept(
    session: Session, owner: str | None, how: dict[str, Any], said: str
) -> None:
    add_tasks(session, "a")
    claimed(session, Task, PLAIN)
    session.execute(update(Task).values(owner=owner))
    grow_old(session, Task, HOUR)

    reaped(session, Task, **how)

    assert rows(session, Task, Task.status, Task.last_error) == [("unclaimed", said)]


def test_a_reaped_job_is_found_by_the_next_claim_and_only_that_one_finishes_it(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        mine = claimed(session, Email, owner)
    reaped(other)
    theirs = claimed(other, Email, "other")

    with pytest.raises(ClaimLost):
        complete(session, mine)
    session.commit()
    complete(other, theirs)
    other.commit()

    assert rows(session, Email, Email.status, Email.owner) == [("done", "other")]


def test_a_fail_of_a_reaped_job_changes_nothing(session: Session, other: Session) -> None:
    add_tasks(session, "a")
    mine = claimed(session, Task, PLAIN)
    reaped(other, Task, max_runtime=FORCE)

    with pytest.raises(ClaimLost):
        fail(session, mine, error="late")
    session.commit()

    assert rows(session, Task, Task.status, Task.last_error) == [
        ("unclaimed", "reaped, max_runtime over: mailer-1")
    ]


def test_loaded_entities_show_the_new_state(session: Session) -> None:
    tasks = add_tasks(session, "a", "b", max_attempts=1)
    claimed(session, Task, PLAIN, 1)
    session.execute(update(Task).values(touched="by us"))
    session.expire_all()
    assert [task.status for task in tasks] == ["claimed", "unclaimed"]

    reap(session, Task, max_runtime=FORCE)

    assert [(task.status, task.attempts) for task in tasks] == [("failed", 1), ("unclaimed", 0)]
    assert [task.touched for task in tasks] == ["touched", "by us"]


def test_a_savepoint_rolled_back_brings_the_claim_back_and_its_entities_show_it(
    session: Session, db_alias: str
) -> None:
    (email,) = add_emails(session, "a")
    emails = claimed(session, Email, PLAIN)
    if db_alias == "sqlite":  # its driver begins nothing before a SAVEPOINT
        session.connection().exec_driver_sql("BEGIN")
    savepoint = session.begin_nested()
    reap(session, Email, max_runtime=FORCE)
    assert email.status == "unclaimed"
    savepoint.rollback()

    assert email.status == "claimed"
    complete(session, emails)


def test_nothing_is_committed(session: Session, other: Session) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)

    assert reap(session, Email, max_runtime=FORCE)
    session.rollback()

    assert statuses(other) == ["claimed"]


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


def test_criteria_that_changed_since_the_claim_strand_no_row(session: Session) -> None:
    session.add(Message(sequence=1, channel="sms"))
    session.commit()
    queue = JobQueue(Message, Message.channel == "sms", Message.sequence < 5)
    assert queue.claim(session, owner=PLAIN)
    session.execute(update(Message).values(sequence=9))
    grow_old(session, Message, HOUR)

    assert len(queue.reap(session)) == 1


def test_a_queue_reaps_its_own_statuses_back_to_its_own(session: Session) -> None:
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


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_held_claims_leave_no_mark_to_go_by(session: Session, other: Session) -> None:
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


def test_autocommit_reaps_in_a_transaction_of_its_own(
    engine: Engine, new_session: Sessions
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    add_tasks(session, "a", "b", max_attempts=1)
    claim(session, Task, owner=PLAIN)

    assert reap(session, Task, max_runtime=FORCE).failed == 1

    assert statuses(new_session(), Task) == ["failed", "unclaimed"]


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
    queue = JobQueue(Email, during="sending")  # of whose status not every engine has an index
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
def test_arguments_that_cannot_be_are_refused(session: Session, how: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        reap(session, Email, **how)
    with pytest.raises(ArgumentError):
        JobQueue(Email).reap(session, **how)


def test_a_class_that_is_no_queue_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="JobMixin"):
        reap(session, Account)


# Side by side with others


@pytest.mark.parametrize("between", ["SELECT", "UPDATE email SET status='unclaimed'"])
def test_two_reapers_take_nothing_twice(
    engine: Engine, new_session: Sessions, db_alias: str, between: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a", "b")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    theirs: list[ReapedJob] = []

    def reap_too() -> None:
        theirs.extend(reap(other, Email).jobs)
        other.commit()

    with before(engine, between, unless_refused(reap_too, other)) as taken:
        mine = reaped(session)

    assert taken
    assert len(mine) + len(theirs) == 2
    assert not set(mine.jobs) & set(theirs)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_reaper_does_not_wait_for_another(session: Session, other: Session) -> None:
    add_emails(session, *"abcd")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    first = reap(session, Email, limit=2)
    began = time.monotonic()

    second = reap(other, Email)

    assert time.monotonic() - began < 2  # a lock would be waited for ten seconds
    assert {len(first), len(second)} == {2}


def test_a_finish_under_way_is_left_alone(
    engine: Engine, new_session: Sessions, db_alias: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a", "b")
    emails = claimed(session, Email, PLAIN)
    complete(session, emails[:1])

    try:
        found = len(reap(other, Email, max_runtime=FORCE))
        other.commit()
    except DBAPIError as error:
        other.rollback()
        if db_alias != "sqlite" or not is_transient(error):
            raise
        found = 1
    session.commit()

    assert found == 1
    assert statuses(session)[0] == "done"


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_finish_behind_a_reap_waits_and_tells_what_it_met(
    session: Session, other: Session, end: Callable[[Session], None]
) -> None:
    add_emails(session, "a")
    emails = claimed(session, Email, PLAIN)
    reap(other, Email, max_runtime=FORCE)
    told: list[type[BaseException] | None] = []

    def finish() -> None:
        try:
            complete(session, emails)
            told.append(None)
        except ClaimLost:
            told.append(ClaimLost)
        session.commit()

    thread = threading.Thread(target=finish)
    with statement_sent(session, "email"):
        thread.start()
    end(other)
    thread.join(10)

    reaped_first = end is Session.commit
    assert told == [ClaimLost if reaped_first else None]
    assert statuses(other) == ["unclaimed" if reaped_first else "done"]


@contextmanager
def statement_sent(session: Session, table: str) -> Iterator[None]:
    """At the end wait until the session has sent a statement on the table."""
    sent = threading.Event()
    connection = session.connection()

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if table in statement:
            sent.set()

    event.listen(connection, "before_cursor_execute", see)
    yield
    assert sent.wait(10)
    event.remove(connection, "before_cursor_execute", see)


@pytest.mark.parametrize("verb", ["complete", "renew", "claim"])
def test_what_changed_between_look_and_lock_is_left_alone(
    engine: Engine, new_session: Sessions, db_alias: str, verb: str
) -> None:
    """A claim is finished, renewed, or taken back and claimed anew under the same name."""
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a")
    emails = claimed(other, Email, PLAIN)
    grow_old(session, Email, HOUR)
    (date,) = rows(session, Email, Email.owner_date)[0]
    fence_of(emails[0]).token.dates.append(as_utc(date))

    def change() -> None:
        if verb == "claim":
            reap(other, Email)
            claim(other, Email, owner=PLAIN)
        else:
            {"complete": complete, "renew": renew}[verb](other, emails)
        other.commit()

    locking = "SELECT email.id, email.owner AS reaped_owner"
    with before(engine, locking, unless_refused(change, other)) as taken:
        found = reaped(session)

    assert taken
    if db_alias == "sqlite":  # the write lock was ours before the first look
        assert len(found) == 1
    else:
        assert not found
        assert statuses(session) == ["done" if verb == "complete" else "claimed"]


def test_a_clients_clock_that_is_an_hour_ahead_changes_nothing(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a", "b")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, timedelta(minutes=30), Email.recipient == "a")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    bound: list[Any] = []

    @event.listens_for(engine, "before_cursor_execute")
    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *args: Any) -> None:
        bound.extend(parameters.values() if isinstance(parameters, dict) else parameters)

    try:
        found = reaped(session, lease=timedelta(minutes=20), max_runtime=timedelta(minutes=25))
    finally:
        event.remove(engine, "before_cursor_execute", see)

    assert len(found) == 1
    assert not [value for value in bound if isinstance(value, datetime)]


# Plans and locks


@pytest.mark.only_on("mysql", "mariadb")
def test_innodb_locks_the_rows_that_are_reaped_and_no_others(
    engine: Engine, session: Session
) -> None:
    fill(engine, "INSERT INTO email (recipient) SELECT 'r'", 2_000)
    claimed(session, Email, "young", 1_000)
    claimed(session, Email, PLAIN, 1_000)
    grow_old(session, Email, HOUR, Email.owner == PLAIN)
    session.connection()

    with statements_seen(engine) as seen:
        found = reap(session, Email, limit=50)

    assert len(found) == 50
    # The optimizer takes the primary key by itself here, but not on every table.
    (locking,) = [statement for statement in seen if "FOR UPDATE" in statement]
    assert "FORCE INDEX (PRIMARY)" in locking
    # An entry of the primary key for each, and those of the indexes that the update left.
    assert locked_rows(session.connection(), "email") <= (
        60 if engine.dialect.name == "mysql" else 200
    )
    session.rollback()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_look_for_claims_reads_claimed_rows_only(engine: Engine, session: Session) -> None:
    fill(engine, "INSERT INTO email (recipient, status) SELECT 'r', 'done'", 20_000)
    session.execute(insert(Email), [{"recipient": "a"} for _ in range(20)])
    claimed(session, Email, PLAIN)
    with engine.connect() as connection:
        connection.execute(text("ANALYZE TABLE email"))
    earlier = rows_read(session.connection())

    assert not reap(session, Email)

    assert rows_read(session.connection()) - earlier < 500
    session.rollback()


def test_a_look_that_finds_nothing_is_two_statements_at_most(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_emails(session, "a")

    with statements_seen(engine) as seen:
        assert not reap(session, Email)

    of_table = [statement for statement in seen if "email" in statement]
    assert len(of_table) == (2 if db_alias == "sqlite" else 1)


# What it says


def test_a_reap_is_logged(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.reap")
    add_tasks(session, "a", "b", max_attempts=1)
    reaped(session, Task)
    assert not caplog.records
    name = of_the_dead(engine, session, Task)

    reaped(session, Task)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("sa_jobqueue.reap", "INFO")
    assert record.getMessage() == f"2 of Task, 2 of them failed; {name}: 2"


def test_nothing_reaped_is_false_and_empty(session: Session) -> None:
    found = reap(session, Email)

    assert (bool(found), len(found), found.by_owner, found.more) == (False, 0, {}, False)


def test_names_are_taken_as_they_are(session: Session) -> None:
    """A percent sign, quotes, and names that differ in nothing but their case."""
    add_tasks(session, "a", "b", "c")
    for owner in ("100%", "o'clock", "O'Clock"):
        claimed(session, Task, owner, 1)
    grow_old(session, Task, HOUR)

    assert reaped(session, Task).by_owner == {"100%": 1, "o'clock": 1, "O'Clock": 1}

    assert names(claim(session, Task, owner="w", limit=5)) == ["a", "b", "c"]
