"""What a single strategy promises beyond the common contract."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine, Table, event, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    JobQueue,
    claim,
    complete,
    fail,
    fence_of,
    release,
)
from tests.models import Base, Email, Task, add_emails, add_tasks, recipients
from tests.support import (
    SERVERS,
    Sessions,
    begin_deferred,
    make_engine,
)

# -- skip_locked ---------------------------------------------------------------


@pytest.mark.only_on("postgresql")
def test_no_plan_makes_a_claim_take_more_than_its_limit(session: Session) -> None:
    add_emails(session, *map(str, range(50)))
    # A nested loop that runs the sub-select again for each row of the table.
    for means in ("hashjoin", "mergejoin", "material", "hashagg", "sort", "memoize"):
        if means != "memoize" or _server_version(session) >= 14:
            session.execute(text(f"SET LOCAL enable_{means} = off"))

    claim(session, Email, owner="w", limit=7)

    claimed = session.scalars(select(Email.id).where(Email.status == "claimed")).all()
    assert len(claimed) == 7


# -- candidates ----------------------------------------------------------------


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


@pytest.fixture
def replica(shared_engine: Engine, new_session: Sessions) -> Iterator[Session]:
    """A session that reads a copy of the emails from before the claim, like a lagging replica."""
    with shared_engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS email_copy"))
        connection.execute(text("CREATE TABLE email_copy AS SELECT * FROM email"))
    lagging = shared_engine.execution_options()

    @event.listens_for(lagging, "before_cursor_execute", retval=True)
    def from_the_copy(conn, cursor, statement, parameters, context, many):  # type: ignore[no-untyped-def]  # SQLAlchemy's own signature
        return statement.replace("FROM email", "FROM email_copy AS email"), parameters

    session = new_session(lagging)
    yield session
    session.close()
    with shared_engine.begin() as connection:
        connection.execute(text("DROP TABLE email_copy"))


@pytest.mark.only_on(*SERVERS)
def test_a_candidate_of_a_lagging_replica_that_no_longer_matches_is_lost(
    session: Session, request: pytest.FixtureRequest
) -> None:
    a, b, c, _ = add_emails(session, "xa", "xb", "xc", "xd")
    replica = request.getfixturevalue("replica")
    a.recipient = "changed"
    b.status = "done"
    session.delete(c)
    session.commit()

    claimed = claim(
        session,
        Email,
        Email.recipient.like("x%"),
        owner="w",
        limit=4,
        candidates_from=replica,
    )

    assert recipients(claimed) == ["xd"]
    assert (claimed.candidates, claimed.lost) == (4, 3)


# -- update_then_select --------------------------------------------------------


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

    @event.listens_for(engine, "before_cursor_execute")
    def let_time_pass(conn, cursor, statement, *_):  # type: ignore[no-untyped-def]  # SQLAlchemy's
        if statement.startswith("ROLLBACK TO"):
            cursor.execute("SET timestamp = 1700000000.123457")

    try:
        second = claim(other, Email, owner="w", limit=2, strategy="update_then_select")
        other.commit()
    finally:
        event.remove(engine, "before_cursor_execute", let_time_pass)
        session.close()
        other.close()
        engine.dispose()  # with the clocks that stand still

    assert (recipients(first), recipients(second)) == (["a", "b"], ["c", "d"])
    assert fence_of(first[0]).owner_date != fence_of(second[0]).owner_date


# -- held ----------------------------------------------------------------------


@pytest.mark.only_on(*SERVERS)
class TestHeld:
    """A held claim locks rows and marks nothing; its transaction is the claim."""

    def test_rows_are_held_until_a_rollback_and_others_are_finished_meanwhile(
        self, session: Session, other: Session
    ) -> None:
        add_emails(session, "a", "b", "c", "d")
        held = claim(session, Email, owner="w", limit=2, strategy="held")
        claim(other, Email, owner="v", limit=2, strategy="held")

        complete(session, held)
        session.commit()

        statuses = session.scalars(select(Email.status).order_by(Email.id))
        assert list(statuses) == ["done", "done", "unclaimed", "unclaimed"]
        assert not claim(session, Email, strategy="held")
        other.rollback()
        assert recipients(claim(session, Email, limit=2, strategy="held")) == ["c", "d"]

    def test_claim_work_and_finish_are_one_transaction(
        self, session: Session, other: Session
    ) -> None:
        add_tasks(session, "a", "b", "c", max_attempts=1)

        done, failed, released = claim(session, Task, owner="w", limit=3, strategy="held")
        complete(session, done)
        fail(session, failed, error="no")
        release(session, released)
        session.commit()

        written = other.execute(
            select(Task.name, Task.status, Task.owner, Task.attempts).order_by(Task.id)
        )
        assert [tuple(row) for row in written] == [
            ("a", "done", "w", 1),
            ("b", "failed", "w", 1),
            ("c", "unclaimed", None, 0),
        ]


# -- compare_and_set -----------------------------------------------------------


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


def _server_version(session: Session) -> int:
    return (
        int(session.connection().exec_driver_sql("SHOW server_version_num").scalar_one()) // 10_000
    )


@pytest.mark.strategies("auto")
def test_a_table_without_its_claim_index_is_claimed_from(
    fresh_database: URL, strategy: str
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    table = Email.__table__
    assert isinstance(table, Table)
    (index,) = (one for one in table.indexes if str(one.name).endswith("_claim"))
    index.drop(engine)
    queue = JobQueue(Email, strategy=strategy)

    seen = []
    with Session(engine) as session:
        add_emails(session, "a", "b", "c")
        session.commit()
        for claim_some in (queue.claim, queue.claim, queue.claim_rows):
            claimed = claim_some(session, owner="w", limit=1)
            seen += recipients(claimed)
            queue.complete(session, claimed, delete=True)
            session.commit()

    assert seen == ["a", "b", "c"]
    engine.dispose()
