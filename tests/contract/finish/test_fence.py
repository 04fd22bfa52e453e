"""The fence: a finish reaches exactly the rows of its own claim."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from sa_jobqueue import (
    ArgumentError,
    Claim,
    ClaimLost,
    JobQueue,
    cancel,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    fail,
    fence_of,
    reap,
    release,
    renew,
    reprioritize,
    retry,
    with_fence,
)
from tests.models import Email, Render, Task, add_emails, add_renders, add_tasks, recipients
from tests.support import SERVERS, Sessions, begin_deferred, statements_seen

pytestmark = pytest.mark.strategies("auto")


def statuses(session: Session) -> list[tuple[str, str, str | None]]:
    found = session.execute(select(Email.recipient, Email.status, Email.owner).order_by(Email.id))
    return [(row.recipient, row.status, row.owner) for row in found]


def test_a_lost_claim_is_reported_and_nothing_written_for_it(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    a, b, c = claimed
    other.execute(update(Email).where(Email.id == b.id).values(owner="thief"))
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, claimed)

    assert (lost.value.lost, lost.value.kept) == ((b,), (a, c))
    assert isinstance(lost.value, StaleDataError)
    session.commit()
    assert statuses(other) == [("a", "done", "w"), ("b", "claimed", "thief"), ("c", "done", "w")]


@pytest.mark.parametrize("column", ["owner", "owner_date", "status"])
def test_each_part_of_the_fence_holds(
    session: Session, other: Session, claimed: Claim[Email], column: str
) -> None:
    changed = {"owner": "x", "owner_date": datetime(2020, 1, 1, tzinfo=UTC), "status": "done"}
    other.execute(update(Email).values({column: changed[column]}))
    other.commit()

    with pytest.raises(ClaimLost):
        complete(session, claimed)


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


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_refuses_to_be_carried_to_another_process(session: Session) -> None:
    add_emails(session, "a")
    (held,) = claim(session, Email, strategy="held")

    with pytest.raises(ArgumentError, match="belongs to its connection"):
        pickle.dumps(fence_of(held))

    assert (fence_of(held).owner, fence_of(held).owner_date) == (None, None)


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


@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_finish_accepts_a_renewal_made_elsewhere_even_if_it_was_rolled_back(
    session: Session, other: Session, claimed: Claim[Email], end: Callable[[Session], None]
) -> None:
    renew(other, [fence_of(email) for email in claimed])
    end(other)

    complete(session, claimed)
    session.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


def test_a_renewal_starts_the_lease_again_and_a_copy_of_the_fence_before_it_is_lost(
    session: Session, claimed: Claim[Email]
) -> None:
    old = pickle.loads(pickle.dumps(fence_of(claimed[0])))
    before = claimed[0].owner_date

    renew(session, claimed)

    now = claimed[0].owner_date
    assert before is not None
    assert now is not None
    assert now >= before
    assert fence_of(claimed[0]).owner_date == now
    with pytest.raises(ClaimLost):
        complete(session, old)


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("finish", "after"),
    [
        (renew, "running"),
        (complete, "done"),
        (fail, "unclaimed"),
        (release, "unclaimed"),
        (cancel_claimed, "cancelled"),
    ],
)
def test_a_claim_is_ours_in_each_status_that_the_class_lists_for_claimed_jobs(
    session: Session, other: Session, finish: Callable[..., None], after: str
) -> None:
    add_renders(session, 2)
    claimed = claim(session, Render, owner="w", limit=2)
    session.execute(update(Render).values(status="running"))
    session.commit()

    finish(session, claimed)
    session.commit()

    assert other.scalars(select(Render.status)).all() == [after] * 2


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


def take_back(session: Session, claimed: Claim[Email]) -> None:
    reap(session, Email, max_runtime=timedelta(0))


@pytest.mark.parametrize("verb", [complete, fail, release, cancel_claimed, take_back])
def test_what_a_savepoint_undoes_entities_show_no_more_and_their_claim_is_held(
    session: Session, claimed: Claim[Email], verb: Callable[..., None]
) -> None:
    begin_deferred(session.connection())
    savepoint = session.begin_nested()
    verb(session, claimed)
    assert "claimed" not in [email.status for email in claimed]
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


# In a transaction that has read before others changed the rows
#
# MariaDB's innodb_snapshot_isolation, on by default since 11.6, refuses its writes to those rows.
# The verbs are not refused: they compare what they change.

INNODB = pytest.mark.only_on("mysql", "mariadb")


@pytest.fixture(params=["ON", "OFF"])
def reader(
    request: pytest.FixtureRequest, engine: Engine, new_session: Sessions, db_alias: str
) -> Iterator[Session]:
    """Open a REPEATABLE READ session, with both settings of MariaDB."""
    if db_alias == "mysql" and request.param == "ON":
        pytest.skip("MySQL has no innodb_snapshot_isolation")
    with engine.connect() as connection:
        if db_alias == "mariadb":
            setting = f"SET SESSION innodb_snapshot_isolation = {request.param}"
            connection.exec_driver_sql(setting)
            connection.rollback()
        session = new_session(connection)
        yield session
        session.close()
        connection.invalidate()  # the setting ends with it


@INNODB
def test_a_finish_accepts_a_renewal_since_the_snapshot(
    reader: Session, other: Session, claimed: Claim[Email]
) -> None:
    reader.scalars(select(Email)).all()
    renew(other, claimed.fences)
    other.commit()

    complete(reader, claimed.fences)
    reader.commit()

    assert [status for _, status, _ in statuses(other)] == ["done"] * 3


@INNODB
@pytest.mark.parametrize("verb", [complete, fail, release, renew, cancel_claimed])
def test_a_claim_taken_away_since_the_snapshot_is_lost(
    reader: Session, other: Session, claimed: Claim[Email], verb: Callable[..., None]
) -> None:
    reader.scalars(select(Email)).all()
    release(other, claimed.fences)
    claim(other, Email, owner="thief", limit=3)
    other.commit()

    with pytest.raises(ClaimLost):
        verb(reader, claimed.fences)
    reader.commit()

    assert statuses(other) == [(recipient, "claimed", "thief") for recipient in "abc"]


@INNODB
def test_verbs_for_unclaimed_jobs_change_rows_changed_since_the_snapshot(
    reader: Session, other: Session
) -> None:
    add_tasks(other, "a")
    (task,) = reader.scalars(select(Task)).all()
    other.execute(update(Task).values(priority=3))
    other.commit()

    assert reprioritize(reader, task, 7) == [task]
    assert cancel(reader, task) == [task]
    assert retry(reader, task) == [task]
    reader.commit()

    assert [(job.status, job.priority) for job in other.scalars(select(Task))] == [("unclaimed", 7)]
