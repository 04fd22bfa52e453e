"""A claim by advisory locks checks its rows again under their locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, String, cast, delete, event, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session, complete
from sa_jobqueue.strategies.advisory import Advisory
from tests.contract.subscriptions import (
    Subscription,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
    mark,
)

pytestmark = pytest.mark.only_on("postgresql")

#: What the locking statement has that the check has not, and the other way round.
LOCKING, CHECKING = "pg_try_advisory_lock", "WHERE subscription.id = ANY"


@contextmanager
def before(connection: Connection, words: str, step: Callable[[], None]) -> Iterator[None]:
    """Take a step before each statement that contains these words."""

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if words in statement:
            step()

    event.listen(connection, "before_cursor_execute", see)
    yield
    event.remove(connection, "before_cursor_execute", see)


#: A lock that the tests hold to stop another session's statement half way.
GATE = 4_711


def test_a_row_finished_between_the_snapshot_and_the_lock_is_given_back(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 2)
    gate = cast(func.pg_advisory_xact_lock_shared(GATE), String) == ""
    found: list[int] = []

    with advisory_session(engine) as other, in_autocommit(engine) as porter:
        (theirs,) = claim_subscriptions(other, limit=1)
        porter.execute(select(func.pg_advisory_lock(GATE)))
        claimer = threading.Thread(
            target=lambda: found.extend(ids(claim_subscriptions(mailing, gate, limit=2)))
        )
        claimer.start()
        # The statement has its snapshot, and has not tried its first row.
        wait_for_a_waiter(porter)
        mark([theirs])
        complete(other, theirs)
        other.commit()
        porter.execute(select(func.pg_advisory_unlock(GATE)))
        claimer.join(10)

    assert found == [2]
    assert kept(engine) == 1
    mailing.rollback()


def wait_for_a_waiter(connection: Connection) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
    )
    deadline = time.monotonic() + 10
    while not connection.execute(waiting).scalar():
        assert time.monotonic() < deadline


def test_the_whole_predicate_is_checked_again(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 4)
    changes = [{"id": 1, "kind": 2}, {"id": 2, "divisor": 7}]

    def change() -> None:
        with Session(engine) as other:
            other.execute(update(Subscription), changes)
            other.execute(delete(Subscription).where(Subscription.id == 3))
            other.commit()

    with before(mailing.connection(), CHECKING, change):
        claimed = claim_subscriptions(
            mailing, Subscription.kind == 1, Subscription.divisor == 1, limit=4
        )

    assert ids(claimed) == [4]
    assert (claimed.candidates, claimed.lost, kept(engine)) == (4, 3, 1)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_claim_goes_on_behind_rows_that_failed_the_check(
    engine: Engine, mailing: Session, limit: int
) -> None:
    add_subscriptions(mailing, 40)
    finished = iter(range(limit, 30 + limit, limit))

    def finish_more() -> None:
        with Session(engine) as other:
            finish = update(Subscription).where(Subscription.id <= next(finished, 0))
            other.execute(finish.values(mailed=1))
            other.commit()

    with before(mailing.connection(), CHECKING, finish_more):
        claimed = claim_subscriptions(mailing, limit=limit)

    assert ids(claimed) == list(range(31, 31 + limit))
    assert (claimed.lost, kept(engine)) == (30, limit)


def test_one_of_several_rows_with_the_same_lock_is_claimed(
    engine: Engine, mailing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of more than 32 bits are hashed; their locks may be the same.

    An inner name is patched, since no two keys with the same hash are known.
    """
    monkeypatch.setattr(Advisory, "_small_key", lambda self: Subscription.kind)
    add_subscriptions(mailing, 3)
    seen = []

    for _ in range(3):
        claimed = claim_subscriptions(mailing, limit=3)
        assert len(claim_subscriptions(mailing, limit=3)) == 0
        assert (len(claimed), kept(engine)) == (1, 1)
        mark(claimed)
        complete(mailing, claimed)
        mailing.commit()
        assert kept(engine) == 0
        seen += ids(claimed)

    assert seen == [1, 2, 3]
