"""What a single strategy promises beyond the common contract."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, complete, fail, fence_of, release
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import SERVERS, Sessions, begin_deferred, heard

# skip_locked


@pytest.mark.only_on("postgresql")
def test_no_plan_makes_a_claim_take_more_than_its_limit(session: Session) -> None:
    add_emails(session, *map(str, range(50)))
    # A nested loop that runs the sub-select again for each row of the table.
    means = "enable_(hashjoin|mergejoin|material|hashagg|sort|memoize)"
    session.execute(
        text(f"SELECT set_config(name, 'off', true) FROM pg_settings WHERE name ~ '{means}'")
    )

    claim(session, Email, owner="w", limit=7)

    claimed = session.scalars(select(Email.id).where(Email.status == "claimed")).all()
    assert len(claimed) == 7


@pytest.mark.only_on(*SERVERS)
def test_the_log_of_a_claim_names_the_strategy_that_auto_has_chosen(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")
    caplog.set_level(logging.DEBUG, "sa_jobqueue.claim")

    claim(session, Email, owner="w")

    assert "w: 1 of Email, skip_locked" in caplog.text


# candidates


@pytest.mark.only_on(*SERVERS)
def test_candidates_taken_by_others_are_counted_as_lost_and_a_claim_that_lost_all_is_logged(
    session: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, *"abcdefgh")
    theirs = claim(other, Email, owner="1", limit=2)
    caplog.set_level(logging.INFO, "sa_jobqueue.lost")

    claimed = claim(session, Email, owner="2", limit=3, strategy="candidates")
    none = claim(session, Email, Email.recipient < "c", owner="2", limit=3, strategy="candidates")
    other.commit()
    rest = claim(session, Email, owner="2", limit=2, strategy="candidates")

    assert (theirs.candidates, theirs.lost) == (None, None)  # only candidates are counted
    assert (recipients(claimed), recipients(rest)) == (["c", "d", "e"], ["f", "g"])
    assert (claimed.candidates, claimed.lost) == (8, 2)
    assert (len(none), none.candidates, none.lost) == (0, 2, 2)
    assert (rest.candidates, rest.lost) == (3, 0)
    assert "all 2 candidates were lost" in caplog.text


# update_then_select


@pytest.mark.only_on("mysql", "mariadb")
def test_two_claims_of_one_owner_in_one_microsecond_do_not_mix(
    engine: Engine, new_session: Sessions
) -> None:
    """The server's clock stands still while two threads share an owner's name."""
    session, other = new_session(), new_session()
    add_emails(session, *"abcd")
    for each in (session, other):
        each.connection().exec_driver_sql("SET timestamp = 1700000000.123456")
    first = claim(session, Email, owner="w", limit=2, strategy="update_then_select")
    session.commit()

    def let_time_pass(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if statement.startswith("ROLLBACK TO"):
            cursor.execute("SET timestamp = 1700000000.123457")

    with heard(engine, "before_cursor_execute", let_time_pass):
        second = claim(other, Email, owner="w", limit=2, strategy="update_then_select")
        other.commit()
    session.close()
    other.close()
    engine.dispose()  # with the clocks that stand still

    assert (recipients(first), recipients(second)) == (["a", "b"], ["c", "d"])
    assert fence_of(first[0]).owner_date != fence_of(second[0]).owner_date


# held


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_its_work_and_its_finish_are_one_transaction(
    session: Session, other: Session
) -> None:
    add_tasks(session, "a", "b", "c", max_attempts=1)

    done, failed, released = claim(session, Task, owner="w", limit=3, strategy="held")
    complete(session, done)
    fail(session, failed, error="no")
    release(session, released)
    session.commit()

    columns = (Task.name, Task.status, Task.owner, Task.attempts)
    assert [tuple(row) for row in other.execute(select(*columns).order_by(Task.id))] == [
        ("a", "done", "w", 1),
        ("b", "failed", "w", 1),
        ("c", "unclaimed", None, 0),
    ]


# compare_and_set


@pytest.mark.only_on("sqlite")
def test_a_claim_waits_for_the_writer_also_in_a_deferred_transaction(
    engine: Engine, new_session: Sessions
) -> None:
    """The claim's first statement takes the write lock, so it waits instead of being refused."""
    session, other = new_session(), new_session()
    add_tasks(session, "a", "b")
    begin_deferred(session.connection())
    other.execute(update(Task).where(Task.name == "a").values(priority=3))
    other.commit()

    claimed = claim(session, Task, owner="w", limit=2)

    assert [task.name for task in claimed] == ["b", "a"]


# Without its index


def test_a_table_without_its_claim_index_is_claimed_from(own_engine: Engine) -> None:
    with own_engine.begin() as connection:
        (index,) = (one for one in Email.__table__.indexes if one.name == "ix_email_claim")  # type: ignore[attr-defined]  # of a Table
        index.drop(connection)
    queue = JobQueue(Email)

    seen = []
    with Session(own_engine) as session:
        add_emails(session, "a", "b", "c")
        for claim_some in (queue.claim, queue.claim, queue.claim_rows):
            claimed = claim_some(session, owner="w", limit=1)
            seen += recipients(claimed)
            queue.complete(session, claimed, delete=True)
            session.commit()

    assert seen == ["a", "b", "c"]
