"""Claims while others claim, change and hold rows, between statements and in old snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    NotClaimed,
    cancel,
    claim,
    complete,
    release,
    reprioritize,
)
from tests.contract.steps import before, unless_refused
from tests.models import Account, Email, Task, add_emails, add_tasks, recipients
from tests.support import MARKING, SERVERS, Sessions, begin_deferred, impatient

# Between two statements


@pytest.mark.parametrize("between", ["SELECT", "UPDATE email SET status='claimed'"])
@pytest.mark.parametrize("order_by", [(), Email.id.desc()])
def test_no_step_between_two_statements_gives_a_row_twice(
    engine: Engine, new_session: Sessions, strategy: str, between: str, order_by: Any
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    add_emails(session, "a", "b")
    theirs: list[str] = []

    def steal() -> None:
        taken = claim(other, Email, owner="w", limit=2, order_by=order_by)
        other.commit()
        theirs.extend(recipients(taken))

    with before(engine, between, unless_refused(steal, other)):
        mine = claim(session, Email, owner="w", limit=2, order_by=order_by, strategy=strategy)

    assert not set(recipients(mine)) & set(theirs)
    complete(session, mine)  # our claim has each of them
    session.commit()


@pytest.mark.parametrize("between", ["SELECT", "UPDATE"])
@pytest.mark.parametrize("verb", ["cancel", "reprioritize"])
def test_a_job_claimed_meanwhile_is_left_out(
    engine: Engine, new_session: Sessions, between: str, verb: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    a, b = add_tasks(session, "a", "b")
    stolen: list[int] = []

    def steal() -> None:
        stolen.extend(job.id for job in claim(other, Task, owner="w"))
        other.commit()

    with before(engine, between, unless_refused(steal, other)) as taken:
        changed = cancel(session, [a, b]) if verb == "cancel" else reprioritize(session, [a, b], 7)
    session.commit()

    left = [job for job in (a, b) if job.id not in stolen]
    status, priority = ("cancelled", 0) if verb == "cancel" else ("unclaimed", 7)
    found = {job.id: (job.status, job.priority) for job in new_session().scalars(select(Task))}
    assert taken
    assert changed == left
    assert found == {
        job.id: (status, priority) if job in left else ("claimed", 0) for job in (a, b)
    }


# Behind rows that others hold: they are locked, and a plain read finds them unclaimed

HELD = JobQueue(Email, strategy="held")


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 10, 99])
def test_candidates_are_drawn_until_the_limit_is_met_or_nothing_is_left(
    session: Session, other: Session, limit: int
) -> None:
    ids = [email.id for email in add_emails(session, *map(str, range(150)))]
    queue = JobQueue(Email, Email.subject.is_(None), strategy="candidates")
    assert len(HELD.claim(other, limit=90)) == 90

    claimed = queue.claim(session, owner="w", limit=limit)

    assert [email.id for email in claimed] == ids[90 : 90 + limit]
    assert claimed.lost == 90


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [1, 5])
def test_keys_are_tried_until_the_limit_is_met(
    session: Session, other: Session, limit: int
) -> None:
    ids = [email.id for email in add_emails(session, *map(str, range(30)))]
    cancel(other, other.scalars(select(Email).where(Email.id.in_(ids[:12]))).all())

    claimed = JobQueue(Email, serial_by=Email.recipient).claim(session, owner="w", limit=limit)

    assert [email.id for email in claimed] == ids[12 : 12 + limit]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("skip_locked", "held")
def test_a_job_that_comes_back_is_claimed_before_the_jobs_behind_it(
    session: Session, other: Session, strategy: str
) -> None:
    """A claim looks up where the ready jobs begin, past the entries of jobs that are gone."""
    add_emails(session, *"abcd")
    marked = JobQueue(Email).claim(other, owner="w", limit=2)
    other.commit()
    queue = JobQueue(Email, strategy=strategy)
    assert recipients(queue.claim(session, owner="w")) == ["c"]
    session.rollback()
    release(other, marked[:1])
    other.commit()

    assert recipients(queue.claim(session, owner="w", limit=2)) == ["a", "c"]


OLD_LOCK = text(
    "SELECT id FROM email WHERE status = 'unclaimed' ORDER BY id LIMIT :batch "
    "FOR UPDATE SKIP LOCKED"
)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("by", ["candidates", "auto"])
def test_claims_and_a_worker_written_by_hand_skip_each_others_rows(
    engine: Engine, session: Session, new_session: Sessions, by: str
) -> None:
    # By default, InnoDB locks the gaps too.
    old = new_session(engine.execution_options(isolation_level="READ COMMITTED"))
    ids = [email.id for email in add_emails(session, *"abcde")]

    theirs = old.scalars(OLD_LOCK, {"batch": 2}).all()
    old.execute(update(Email).where(Email.id.in_(theirs)).values(status="claimed", owner="old"))
    ours = claim(session, Email, owner="new", limit=2, strategy=by)
    old.commit()
    rest = old.scalars(OLD_LOCK, {"batch": 5}).all()

    assert (theirs, [email.id for email in ours], rest) == (ids[:2], ids[2:4], ids[4:])


# In savepoints


@pytest.mark.parametrize("how", ["rollback", "close", "savepoint", "released savepoint"])
def test_a_second_claim_that_is_undone_leaves_the_first_one(
    session: Session, other: Session, how: str
) -> None:
    add_emails(session, "a")
    (email,) = claim(session, Email, owner="w")
    session.commit()
    begin_deferred(session.connection())
    savepoint = session.begin_nested() if "savepoint" in how else session
    release(session, email)
    assert list(claim(session, Email, owner="w")) == [email]

    if how == "released savepoint":
        savepoint.commit()
        session.rollback()
    else:
        getattr(savepoint, "close" if how == "close" else "rollback")()

    complete(other if how == "close" else session, email)
    session.commit()
    other.commit()
    assert other.scalars(select(Email.status)).all() == ["done"]


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_ends_with_the_savepoint_around_its_own(session: Session) -> None:
    add_emails(session, "a", "b")
    outer = session.begin_nested()
    with session.begin_nested():
        held = HELD.claim(session)
    session.begin_nested().rollback()  # a savepoint in which nothing was claimed
    complete(session, held)
    with session.begin_nested():
        undone = HELD.claim(session)
    outer.rollback()

    with pytest.raises(NotClaimed):
        complete(session, undone)


def test_a_claim_in_a_savepoint_is_forgotten_with_it(session: Session) -> None:
    (email,) = add_emails(session, "a")
    begin_deferred(session.connection())
    savepoint = session.begin_nested()
    claimed = claim(session, Email, owner="w")
    assert email.status == "claimed"
    savepoint.rollback()

    assert email.status == "unclaimed"
    with pytest.raises(ClaimLost):
        complete(session, claimed)


# Whatever the isolation level


def test_jobs_committed_after_an_empty_claim_are_found_by_the_next(
    session: Session, other: Session, strategy: str
) -> None:
    assert not claim(session, Email, owner="w", strategy=strategy)
    if strategy == "compare_and_set":
        session.commit()  # an open write transaction would keep the other session from inserting
    add_emails(other, "a")

    assert recipients(claim(session, Email, owner="w", strategy=strategy)) == ["a"]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("refuses", [False, True])
def test_jobs_new_and_changed_since_a_repeatable_read_are_claimed_in_their_order(
    new_session: Sessions, other: Session, strategy: str, db_alias: str, refuses: bool
) -> None:
    """Since 11.6.2 MariaDB refuses by default to lock records changed since the snapshot."""
    other.add(Email(id=200, recipient="second"))
    other.commit()
    session = new_session()  # the engine's default, REPEATABLE READ
    if db_alias == "mariadb":
        value = "ON" if refuses else "OFF"
        session.execute(text(f"SET SESSION innodb_snapshot_isolation = {value}"))
    account = Account(name="x")
    session.add(account)
    session.flush()
    assert session.scalars(select(Email.id)).all() == [200]  # the snapshot is taken
    other.execute(update(Email).values(subject="changed"))
    other.add(Email(id=100, recipient="first"))
    other.commit()

    found = claim(session, Email, owner="w", limit=2, strategy=strategy)

    assert recipients(found) == ["first", "second"]
    assert found[0].status == ("unclaimed" if strategy == "held" else "claimed")
    assert not inspect(account).expired_attributes


@pytest.mark.strategies(*MARKING)
@pytest.mark.driver_begins
def test_two_autocommit_claimers_never_share_a_job_and_finish_theirs(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    session, other = new_session(autocommit), new_session(autocommit)
    add_emails(session, *"abcdefgh")

    taken = [
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
        *claim(other, Email, owner="2", limit=3, strategy=strategy),
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
    ]

    assert recipients(taken) == list("abcdefgh")
    assert [email.owner for email in taken] == ["1"] * 3 + ["2"] * 3 + ["1"] * 2
    complete(session, taken[:3])
    complete(other, taken[3:6], delete=True)
    assert session.scalars(select(Email.status).order_by(Email.id)).all() == [
        *["done"] * 3,
        *["claimed"] * 2,
    ]
