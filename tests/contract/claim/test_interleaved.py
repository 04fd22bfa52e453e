"""Two sessions take steps between each other's statements."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, NotClaimed, cancel, claim, complete, release
from tests.contract.steps import before, unless_refused
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, Sessions, begin_deferred, impatient


@pytest.mark.parametrize("between", ["SELECT", "UPDATE email SET status='claimed'"])
@pytest.mark.parametrize("order_by", [(), Email.id.desc()])
def test_no_step_between_two_statements_gives_a_row_twice(
    engine: Engine,
    new_session: Sessions,
    strategy: str,
    between: str,
    order_by: Any,
) -> None:
    session = new_session()
    add_emails(session, "a", "b")
    theirs: list[str] = []
    other = new_session(impatient(engine))

    def steal() -> None:
        taken = claim(other, Email, owner="w", limit=2, order_by=order_by)
        other.commit()
        theirs.extend(recipients(taken))

    with before(engine, between, unless_refused(steal, other)):
        mine = claim(session, Email, owner="w", limit=2, order_by=order_by, strategy=strategy)

    assert not set(recipients(mine)) & set(theirs)
    complete(session, mine)  # our claim has each of them
    session.commit()


@pytest.mark.parametrize("between", ["SELECT", "UPDATE email SET status='cancelled'"])
def test_a_job_claimed_meanwhile_is_not_cancelled(
    engine: Engine, new_session: Sessions, between: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    (email,) = add_emails(session, "a")
    stolen: list[str] = []

    def steal() -> None:
        stolen.extend(recipients(claim(other, Email, owner="w")))
        other.commit()

    with before(engine, between, unless_refused(steal, other)):
        cancelled = cancel(session, [email])
    session.commit()

    status = new_session().scalar(select(Email.status))
    assert (cancelled == [email], bool(stolen), status) in [
        (True, False, "cancelled"),
        (False, True, "claimed"),
    ]


@pytest.mark.parametrize("how", ["rollback", "close", "savepoint", "released savepoint"])
def test_a_second_claim_that_is_undone_leaves_the_first_one(
    session: Session, other: Session, how: str
) -> None:
    add_emails(session, "a")
    (email,) = claim(session, Email, owner="w")
    session.commit()
    begin_deferred(session.connection())
    savepoint = session.begin_nested() if "savepoint" in how else None
    release(session, email)
    assert list(claim(session, Email, owner="w")) == [email]

    if savepoint is not None and how == "released savepoint":
        savepoint.commit()
    if savepoint is not None and how == "savepoint":
        savepoint.rollback()
    elif how == "close":
        session.close()
    else:
        session.rollback()

    complete(other if how == "close" else session, email)
    session.commit()
    other.commit()
    assert other.scalars(select(Email.status)).all() == ["done"]


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_ends_with_the_savepoint_around_its_own(session: Session) -> None:
    add_emails(session, "a", "b")
    outer = session.begin_nested()
    with session.begin_nested():
        held = claim(session, Email, strategy="held", limit=1)
    session.begin_nested().rollback()  # a savepoint in which nothing was claimed
    complete(session, held)
    with session.begin_nested():
        undone = claim(session, Email, strategy="held", limit=1)
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
