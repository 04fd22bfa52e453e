"""reap() takes back the claims of dead owners, and those whose lease is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, inspect, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    Owner,
    OwnerState,
    claim,
    complete,
    connection_owner,
    fence_of,
    owner_state,
    reap,
    renew,
    utc_now,
)
from tests.contract.plans import fill, locked_rows, rows_read
from tests.contract.steps import before, unless_refused
from tests.contract.worker.faults import Base, Picky, add_picky, picky_states
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
    names,
    recipients,
)
from tests.support import (
    SERVERS,
    Sessions,
    heard,
    impatient,
    only_seeing,
    statements_seen,
    until,
    with_empty_tables,
)

HOUR = timedelta(hours=1)
FORCE = timedelta(0)
PLAIN = "mailer-1"
MINUTE = timedelta(minutes=1)
MOMENT = timedelta(microseconds=1)

DEAD, LEASE, RUNTIME = "dead owner", "lease over", "max_runtime over"


def claimed(session: Session, entity: type[Any], owner: Any, limit: int = 100) -> Claim[Any]:
    """Commit a claim of all unclaimed jobs."""
    found = claim(session, entity, owner=owner, limit=limit)
    session.commit()
    return found


def of_the_dead(engine: Engine, session: Session, entity: type[Any], limit: int = 100) -> str:
    """Commit claims of an Owner that dies; return its name."""
    with Owner(engine, "victim") as owner:
        claimed(session, entity, owner, limit)
        return owner.name


def own(entity: type[Any], name: str) -> Any:
    """Return an attribute of the queue; Order has its own of the same names."""
    return getattr(entity, f"job_{name}" if entity is Order else name)


def grow_old(session: Session, entity: type[Any], age: timedelta, *where: Any) -> None:
    """Make claims look so much older, by the database's clock."""
    column = own(entity, "owner_date").property.columns[0]
    past = utc_now(-(age // timedelta(microseconds=1)))
    session.connection().execute(
        update(column.table).where(column.is_not(None), *where).values({column: past})
    )
    session.commit()
    session.expire_all()


def reaped(session: Session, entity: type[Any] = Email, **how: Any) -> Any:
    """Commit a reap."""
    found = reap(session, entity, **how)
    session.commit()
    return found


def rows(session: Session, entity: type[Any], *columns: Any) -> list[tuple[Any, ...]]:
    """Read columns from the database, not from what the session has loaded."""
    session.rollback()
    found = session.execute(select(*columns).order_by(*inspect(entity).primary_key)).all()
    session.rollback()  # so that a verb after this begins a transaction of its own
    return [tuple(map(_aware, row)) for row in found]


def _aware(value: Any) -> Any:
    """Say of a time of SQLite that it is UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def statuses(session: Session, entity: type[Any] = Email) -> list[str]:
    return [status for (status,) in rows(session, entity, own(entity, "status"))]


# Whose claims, and when


@pytest.mark.parametrize(
    ("state", "age", "how", "reason"),
    [
        ("dead", FORCE, {}, DEAD),
        ("alive", 100 * HOUR, {"lease": HOUR}, None),
        ("alive", HOUR / 2, {"max_runtime": HOUR}, None),
        ("alive", 2 * HOUR, {"max_runtime": HOUR}, RUNTIME),
        ("alive", FORCE, {"max_runtime": FORCE}, RUNTIME),
        ("unknown", 9 * MINUTE, {}, None),
        ("unknown", 11 * MINUTE, {}, LEASE),
        ("unknown", 11 * MINUTE, {"lease": HOUR}, None),
        ("unknown", 2 * HOUR, {"lease": HOUR}, LEASE),
        ("unknown", HOUR, {"max_runtime": FORCE, "lease": 9 * HOUR}, RUNTIME),
        ("nobody", 9 * MINUTE, {}, None),
        ("nobody", 11 * MINUTE, {}, LEASE),
        ("without a date", HOUR, {"lease": MOMENT}, None),
        ("without a date", HOUR, {"max_runtime": FORCE}, RUNTIME),
    ],
)
def test_the_state_of_its_owner_and_its_age_decide_when_a_claim_is_taken_back(
    engine: Engine,
    session: Session,
    state: str,
    age: timedelta,
    how: dict[str, Any],
    reason: str | None,
) -> None:
    add_tasks(session, "a")
    changed = {"nobody": {"owner": None}, "without a date": {"owner_date": None}}.get(state)
    of_a_server = state in ("alive", "dead")
    with Owner(engine) if of_a_server else nullcontext(PLAIN) as owner:
        claimed(session, Task, owner)
        if changed is not None:
            session.execute(update(Task).values(changed))
        grow_old(session, Task, age)
        ((identity, name, date),) = rows(session, Task, Task.id, Task.owner, Task.owner_date)
        found = None if state == "dead" else reaped(session, Task, **how)
    if found is None:
        found = reaped(session, Task, **how)

    state_after = rows(session, Task, Task.status, Task.owner, Task.last_error)
    if reason is None:
        assert (len(found), bool(found), found.by_owner, found.more) == (0, False, {}, False)
        assert state_after == [("claimed", name, None)]
    else:
        (job,) = found.jobs
        assert (job.identity, job.owner, job.reason) == ((identity,), name, reason)
        assert (job.failed, job.owner_date) == (False, date)
        assert (found.by_owner, found.unclaimed, found.failed) == ({name: 1}, 1, 0)
        assert state_after == [("unclaimed", None, f"reaped, {reason}: {name or 'nobody'}")]


@pytest.mark.only_on(*SERVERS)
def test_the_claims_of_a_closed_connection_still_wait_for_the_lease(
    engine: Engine, session: Session
) -> None:
    """A pool may close connections while its process goes on working."""
    add_emails(session, "a")
    with engine.connect() as connection:
        connection.detach()
        with Session(connection) as bound:
            name = connection_owner(bound)
            claimed(bound, Email, name)

    def is_noticed() -> bool:
        session.rollback()
        return owner_state(session, name) is OwnerState.DEAD

    until(is_noticed)
    session.rollback()

    assert not reaped(session)
    grow_old(session, Email, 11 * MINUTE)

    found = reaped(session)
    assert [(job.owner, job.reason) for job in found.jobs] == [(name, DEAD)]


def test_a_renewed_claim_is_not_taken_when_the_lease_of_its_claim_is_over(session: Session) -> None:
    add_emails(session, "a", "b")
    emails = claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    fence = fence_of(emails[0])
    fence.token.dates.append(emails[0].owner_date)  # the time that this test has just set
    renew(session, emails[0])
    session.commit()

    found = reaped(session)

    assert [job.identity for job in found.jobs] == [fence_of(emails[1]).identity]
    complete(session, emails[0])


@pytest.mark.parametrize(("lease", "count"), [(None, 0), (MINUTE, 1)])
def test_a_queue_has_its_own_lease(session: Session, lease: timedelta | None, count: int) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, 5 * MINUTE)

    assert len(JobQueue(Email, lease=lease).reap(session)) == count


# What becomes of the jobs


def test_a_reaped_job_keeps_its_attempts_and_fails_with_the_reason_after_the_last(
    engine: Engine, session: Session
) -> None:
    tasks = add_tasks(session, "last", max_attempts=1)
    tasks += add_tasks(session, "again", max_attempts=2)
    tasks += add_tasks(session, "endless", max_attempts=None)
    name = of_the_dead(engine, session, Task)
    grow_old(session, Task, HOUR)
    assert [task.status for task in tasks] == ["claimed"] * 3

    found = reap(session, Task)

    # Entities that are loaded show it, too.
    assert [task.status for task in tasks] == ["failed", "unclaimed", "unclaimed"]
    session.commit()
    said = f"reaped, dead owner: {name}"
    state = rows(session, Task, Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert state == [
        ("last", "failed", name, 1, said),
        ("again", "unclaimed", None, 1, said),
        ("endless", "unclaimed", None, 1, said),
    ]
    assert (found.failed, found.unclaimed) == (1, 2)
    assert [job.identity for job in found.jobs if job.failed] == rows(session, Task, Task.id)[:1]
    assert rows(session, Task, Task.owner_date)[0][0] > datetime.now(UTC) - HOUR / 2


# Which rows


def test_a_queue_reaps_the_rows_of_its_equality_whatever_its_other_criteria_say_now(
    session: Session,
) -> None:
    session.add_all([Message(sequence=1, channel="sms"), Message(sequence=2, channel="fax")])
    session.commit()
    claimed(session, Message, PLAIN)
    session.execute(update(Message).values(sequence=9))
    grow_old(session, Message, HOUR)

    JobQueue(Message, Message.channel == "fax", Message.sequence < 5).reap(session)
    session.commit()

    assert rows(session, Message, Message.channel, Message.status) == [
        ("sms", "claimed"),
        ("fax", "unsent"),
    ]


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


def test_a_job_that_its_owner_has_moved_on_is_reaped(session: Session) -> None:
    first, _ = add_renders(session, 2)
    claimed(session, Render, PLAIN)
    session.execute(update(Render).where(Render.id == first.id).values(status="running"))
    grow_old(session, Render, HOUR)

    assert len(reaped(session, Render)) == 2

    assert statuses(session, Render) == ["unclaimed"] * 2


@pytest.mark.parametrize("entity", [Order, Pair, Document, Cat, Dog, Animal])
def test_every_kind_of_mapping_is_reaped_and_a_subclass_reaps_its_own_rows_only(
    session: Session, entity: type[Any]
) -> None:
    session.add_all(
        [Order(), Pair(left=1, right="x"), Document(created=1), Cat(), Dog(trick="sit")]
    )
    session.commit()
    jobs = claimed(session, entity, PLAIN)
    others = claimed(session, Animal, PLAIN)
    grow_old(session, entity, HOUR)

    found = reaped(session, entity)

    assert jobs
    assert {job.identity for job in found.jobs} == {fence_of(job).identity for job in jobs}
    assert {own(type(job), "status").__get__(job, type(job)) for job in jobs} == {"unclaimed"}
    assert {job.status for job in others if not isinstance(job, entity)} <= {"claimed"}


def test_criteria_of_the_session_hold(new_session: Sessions) -> None:
    session = new_session()
    add_emails(session, "tenant1", "tenant2")
    claimed(session, Email, PLAIN)
    tenant = new_session()
    only_seeing(tenant, Email, Email.recipient == "tenant2")

    assert len(reaped(tenant, max_runtime=FORCE)) == 1

    assert statuses(session) == ["claimed", "unclaimed"]


@pytest.mark.driver_begins
def test_a_batch_under_autocommit_that_breaks_is_not_written_in_part(
    engine: Engine, new_session: Sessions
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    add_tasks(session, "last", max_attempts=1)
    add_tasks(session, "again", max_attempts=2)
    claim(session, Task, owner=PLAIN, limit=2)

    def fail_to_fail(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE") and "status='failed'" in statement:
            raise RuntimeError("power cut")

    with heard(engine, "before_cursor_execute", fail_to_fail), pytest.raises(RuntimeError):
        reap(session, Task, max_runtime=FORCE)
    assert statuses(new_session(), Task) == ["claimed", "claimed"]

    reap(session, Task, max_runtime=FORCE)
    assert statuses(new_session(), Task) == ["failed", "unclaimed"]


@pytest.mark.driver_begins
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_a_row_that_refuses_to_be_taken_back_keeps_its_claim_and_costs_no_other(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture, level: Any
) -> None:
    Base.metadata.create_all(engine)
    with_empty_tables(engine, Base.metadata)
    add_picky(session, "a", "b", "stuck", "c", "d")
    of_the_dead(engine, session, Picky)

    with Session(engine.execution_options(isolation_level=level)) as own_session:
        assert len(reaped(own_session, Picky)) == 4

    assert picky_states(session) == {
        **dict.fromkeys("abcd", ("unclaimed", 1)),
        "stuck": ("claimed", 1),
    }
    assert len([text for text in caplog.messages if "cannot be reaped" in text]) == 1


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
    keys = [job.identity[0] for job in first.jobs]
    oldest = session.scalars(select(Email).where(Email.id.in_(keys)))
    assert sorted(recipients(oldest)) == ["b", "c"]


def test_the_limit_holds_over_all_reasons(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcd")
    of_the_dead(engine, session, Email, 2)
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)

    found = reaped(session, limit=3)

    assert [job.reason for job in found.jobs] == [DEAD, DEAD, LEASE]
    assert found.more


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"lease": FORCE}, "longer than zero"),
        ({"lease": 60}, "lease= takes a timedelta longer than zero, .*seconds=60"),
        ({"max_runtime": timedelta(seconds=-1)}, "of at least zero"),
        ({"max_runtime": 0}, "max_runtime= takes a timedelta"),
        ({"limit": 0}, "at least 1"),
        ({"limit": True}, "limit must be the number of claims"),
    ],
)
def test_invalid_arguments_are_refused(session: Session, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        reap(session, Email, **how)
    with pytest.raises(ArgumentError, match=words):
        JobQueue(Email).reap(session, **how)
    with pytest.raises(ArgumentError, match="JobMixin"):
        reap(session, Account)


# Side by side with others


@pytest.mark.only_on(*SERVERS)
def test_a_reaper_does_not_wait_for_another(session: Session, other: Session) -> None:
    add_emails(session, *"abcd")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    first = reap(session, Email, limit=2)
    began = time.monotonic()

    second = reap(other, Email)

    assert time.monotonic() - began < 8  # to wait for a lock would take ten seconds
    assert {len(first), len(second)} == {2}


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_finish_waits_for_a_reap_and_reports_lost_claims(
    session: Session, other: Session, end: Callable[[Session], None]
) -> None:
    add_emails(session, "a")
    emails = claimed(session, Email, PLAIN)
    reap(other, Email, max_runtime=FORCE)

    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(complete, session, emails)
        with pytest.raises(TimeoutError):
            finishing.result(0.2)
        end(other)
        error = finishing.exception(10)
    session.commit()

    reaped_first = end is Session.commit
    assert isinstance(error, ClaimLost) is reaped_first
    assert statuses(other) == ["unclaimed" if reaped_first else "done"]


@pytest.mark.parametrize("verb", ["complete", "renew", "claim"])
def test_a_claim_that_changes_between_look_and_lock_is_left_alone(
    engine: Engine, new_session: Sessions, db_alias: str, verb: str
) -> None:
    """Another session finishes, renews or reaps the claim, and may claim anew under its name."""
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a")
    emails = claimed(other, Email, PLAIN)
    grow_old(session, Email, HOUR)
    fence_of(emails[0]).token.dates.append(rows(session, Email, Email.owner_date)[0][0])

    def change() -> None:
        if verb == "claim":
            reap(other, Email)
            claim(other, Email, owner=PLAIN)
        else:
            {"complete": complete, "renew": renew}[verb](other, emails)
        other.commit()

    locking = "SELECT email.owner, "
    with before(engine, locking, unless_refused(change, other)) as taken:
        found = reaped(session)

    assert taken
    if db_alias == "sqlite":  # we had the write lock before the first look
        assert len(found) == 1
    else:
        assert not found
        assert statuses(session) == ["done" if verb == "complete" else "claimed"]


def test_no_time_of_the_client_is_compared_with_a_claim(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, timedelta(minutes=30), Email.recipient == "a")
    bound: list[Any] = []

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *args: Any) -> None:
        bound.extend(parameters.values() if isinstance(parameters, dict) else parameters)

    with heard(engine, "before_cursor_execute", see):
        found = reaped(session, lease=timedelta(minutes=20), max_runtime=timedelta(minutes=25))

    assert len(found) == 1
    assert not [value for value in bound if isinstance(value, datetime)]


@pytest.mark.parametrize(
    ("changed", "after"),
    [("status = 'done', owner = NULL", ("done", None)), ("owner = 'x'", ("claimed", "x"))],
)
def test_a_claim_that_changes_behind_a_lost_row_lock_is_not_reported_as_taken_back(
    engine: Engine, session: Session, changed: str, after: tuple[str, str | None]
) -> None:
    """In a Group Replication with several primaries other members' transactions break row locks."""
    add_emails(session, "a", "b", "c")
    of_the_dead(engine, session, Email)
    row = f"UPDATE email SET {changed} WHERE recipient = 'b'"

    with before(engine, "SAVEPOINT", lambda: session.connection().exec_driver_sql(row)):
        found = reaped(session)

    assert len(found) == 2
    assert rows(session, Email, Email.status, Email.owner)[1] == after


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
    # The optimizer chooses the primary key by itself here, but not on every table.
    (locking,) = [statement for statement in seen if "FOR UPDATE" in statement]
    assert "FORCE INDEX (PRIMARY)" in locking
    # An entry of the primary key for each row, and the index entries that the update left.
    assert locked_rows(session.connection(), "email") <= (
        60 if engine.dialect.name == "mysql" else 200
    )
    session.rollback()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_look_for_claims_reads_only_claimed_rows(engine: Engine, session: Session) -> None:
    fill(engine, "INSERT INTO email (recipient, status) SELECT 'r', 'done'", 20_000)
    session.execute(insert(Email), [{"recipient": "a"} for _ in range(20)])
    claimed(session, Email, PLAIN)
    with engine.connect() as connection:
        connection.execute(text("ANALYZE TABLE email"))
    earlier = rows_read(session.connection())

    assert not reap(session, Email)

    assert rows_read(session.connection()) - earlier < 500
    session.rollback()


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


def test_odd_owner_names_are_taken_literally(session: Session) -> None:
    """Names with a percent sign or quotes, and names that differ only in case."""
    add_tasks(session, "a", "b", "c")
    for owner in ("100%", "o'clock", "O'Clock"):
        claimed(session, Task, owner, 1)
    grow_old(session, Task, HOUR)

    assert reaped(session, Task).by_owner == {"100%": 1, "o'clock": 1, "O'Clock": 1}

    assert names(claim(session, Task, owner="w", limit=5)) == ["a", "b", "c"]
