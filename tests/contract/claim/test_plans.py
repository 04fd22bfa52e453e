"""Claims walk the claim index: read from EXPLAIN, and from the rows that were locked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, claim_statements
from tests.contract.plans import (
    PARAMETERS,
    analyze,
    explained,
    fill,
    locked_rows,
    locking,
    rows_read,
    sorts_the_queue,
)
from tests.contract.round_models import Pet, RoundBase
from tests.models import Base, Email, Message, Task
from tests.support import make_engine
from tests.videos import Video, videos

#: Rows that are done, and rows that are due tomorrow at a better priority.
DONE_ROWS = 100_000
LATER_ROWS, LATER_ROWS_IN_FULL = 50_000, 1_000_000
#: PostgreSQL counts pages, not rows.
LATER_ROWS_IN_PAGES = 200_000
VIDEO_ROWS = 10_000

#: All in one xdist worker: every worker with some of these tests would fill its own tables.
pytestmark = [pytest.mark.load, pytest.mark.xdist_group("plans")]


@pytest.fixture(scope="module")
def big(db_url: URL) -> Iterator[Engine]:
    """An engine whose tables are emptied, and filled by the tests of this module."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    RoundBase.metadata.create_all(engine)
    yield engine
    # Dropped and made anew: deleting a million rows took MySQL a minute.
    for metadata in (Base.metadata, RoundBase.metadata):
        metadata.drop_all(engine)
        metadata.create_all(engine)
    engine.dispose()


def mostly(word: str, other: str) -> str:
    """Write a status that one row of a thousand has, in SQL."""
    return f"CASE WHEN number % 1000 = 0 THEN '{word}' ELSE '{other}' END"


@pytest.fixture(scope="module")
def done_rows(big: Engine) -> Engine:
    """100,000 done rows and a few unclaimed jobs, as in production."""
    rows = {
        "email (recipient, status)": f"'r', {mostly('unclaimed', 'done')}",
        "message (sequence, channel, message_status)": (
            f"number, 'sms', {mostly('unsent', 'sent')}"
        ),
        "round_pet (kind, status, round)": (
            f"'pet', {mostly('unclaimed', 'done')}, CASE WHEN number > 50000 THEN 2 ELSE 1 END"
        ),
    }
    for columns, values in rows.items():
        fill(big, f"INSERT INTO {columns} SELECT {values}", DONE_ROWS)
    statuses = [*Video.__queue_args__["ready"], *Video.__queue_args__["during"], "uploaded"]
    waiting = " ".join(f"WHEN {n} THEN '{status}'" for n, status in enumerate(statuses))
    fill(
        big,
        "INSERT INTO video (title, status, owner, owner_date) SELECT 'v', "
        f"CASE number % 500 {waiting} ELSE 'published' END, 'w', '2030-01-01 00:00:00'",
        VIDEO_ROWS,
    )
    for table in ("email", "message", "round_pet", "video"):
        analyze(big, table)
    return big


#: The queues of each table, by a strategy.
QUEUES: dict[str, Callable[[str], list[JobQueue[Any]]]] = {
    "email": lambda by: [JobQueue(Email, strategy=by)],
    "message": lambda by: [JobQueue(Message, Message.channel == "sms", strategy=by)],
    "round_pet": lambda by: [JobQueue(Pet, *w, strategy=by) for w in ((), (Pet.round == 2,))],
    "video": lambda by: [step.queue for step in videos(strategy=by).steps],
}


@pytest.mark.parametrize("table", QUEUES)
def test_the_claim_index_serves_the_claim_without_a_sort(
    done_rows: Engine, strategy: str, table: str
) -> None:
    for queue in QUEUES[table](strategy):
        with Session(done_rows) as session:
            connection = session.connection()
            statements = claim_statements(queue, dialect=connection.dialect)

            plan = explained(connection, locking(statements, done_rows))
            before = rows_read(connection)
            claimed = queue.claim(session, owner="w", limit=10)

            assert re.search(rf"'?ix_{table}_claim\b(?!,)", plan), plan
            assert not re.search(rf"'ix_{table}_reap'", plan), plan
            assert not sorts_the_queue(plan, done_rows), plan
            assert len(claimed) == 10
            assert rows_read(connection) - before < 500
            session.rollback()


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("skip_locked", "held", "candidates")
def test_a_claim_locks_what_it_takes_and_little_more(done_rows: Engine, strategy: str) -> None:
    served = JobQueue(Email, strategy=strategy)
    by_candidates = JobQueue(Email, Email.recipient.like("r%"))  # which no index serves
    for queue in (served, by_candidates):
        with Session(done_rows) as session:
            taken = queue.claim(session, owner="w", limit=50)

            locked = locked_rows(session.connection(), "email")

            assert len(taken) == 50
            assert 50 <= locked <= 60 if done_rows.dialect.name == "mysql" else locked <= 120
            session.rollback()
    assert taken.candidates is not None


@pytest.fixture(scope="module")
def later_rows(big: Engine, full: bool) -> Engine:
    """Many jobs due tomorrow at a better priority, and a few that are due."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows = LATER_ROWS_IN_PAGES if big.dialect.name == "postgresql" else LATER_ROWS
    with big.begin() as connection:
        connection.execute(text("DELETE FROM task"))
    fill(
        big,
        f"INSERT INTO task (name, priority, run_at) SELECT 'later', -(number % 5), '{tomorrow}'",
        LATER_ROWS_IN_FULL if full else rows,
    )
    fill(big, "INSERT INTO task (name, priority) SELECT 'now', 1 + number % 3", 100)
    analyze(big, "task")
    return big


def test_jobs_due_later_are_never_walked_over(later_rows: Engine, strategy: str) -> None:
    """The number of rows that the database reads stays near the limit."""
    with Session(later_rows) as session:
        before = rows_read(session.connection())
        ticks: list[int] = []
        driver: Any = session.connection().connection.driver_connection
        if later_rows.dialect.name == "sqlite":  # each tick: 1,000 virtual instructions
            driver.set_progress_handler(lambda: bool(ticks.append(1)), 1_000)  # type: ignore[func-returns-value]  # False: go on

        tasks = claim(session, Task, owner="w", limit=50, strategy=strategy)

        assert len(ticks) < 50
        assert rows_read(session.connection()) - before < 1_000
        assert [task.name for task in tasks] == ["now"] * 50
        if later_rows.dialect.name == "sqlite":
            driver.set_progress_handler(None, 0)
        if later_rows.dialect.name == "postgresql":
            assert buffers_of(session, strategy) < 1_200  # to walk over them would read 1,900 more
        session.rollback()


def buffers_of(session: Session, strategy: str) -> int:
    """Count the pages that the claim touches; PostgreSQL counts rows only at commit."""
    session.rollback()
    connection = session.connection()
    queue = JobQueue(Task, strategy=strategy)
    pages = 0
    for statement in claim_statements(queue, dialect=connection.dialect):
        compiled = statement.compile(dialect=connection.dialect)  # type: ignore[attr-defined]
        if "sa_jobqueue_keys" in compiled.params:
            continue
        given = {**PARAMETERS, "claim_priority": -4}
        parameters = compiled.construct_params(
            {**compiled.params, **{k: v for k, v in given.items() if k in compiled.params}}
        )
        plan = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}", parameters
        ).scalar_one()[0]["Plan"]
        pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    session.rollback()
    return pages


#: Jobs behind the done rows. With this share of all rows optimizers expect to find the first
#: of them sooner in the order of the primary key.
WAITING_ROWS = 20_000


@pytest.fixture(scope="module")
def waiting_rows(done_rows: Engine) -> Engine:
    """More jobs behind the 100,000 done rows."""
    fill(done_rows, "INSERT INTO email (recipient) SELECT 'w'", WAITING_ROWS)
    analyze(done_rows, "email")
    return done_rows


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("where", [(), (Email.recipient == "w",)], ids=["served", "not served"])
def test_done_rows_are_never_walked_over(
    waiting_rows: Engine, strategy: str, where: tuple[Any, ...]
) -> None:
    with Session(waiting_rows) as session:
        before = rows_read(session.connection())
        taken = claim(session, Email, *where, owner="w", limit=10, strategy=strategy)

        assert len(taken) == 10
        assert rows_read(session.connection()) - before < 2_000
        session.rollback()
