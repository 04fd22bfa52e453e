"""Claims walk the claim index: read from EXPLAIN, and from the rows that were locked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, literal_column, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, claim_statements
from tests.contract.plans import (
    PARAMETERS,
    analyze,
    explained,
    fill,
    locking,
    rows_read,
    sorts_the_queue,
)
from tests.innodb_locks import locked_rows
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
    yield engine
    # Dropped and made anew: deleting a million rows took MySQL a minute.
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture(scope="module")
def done_rows(big: Engine) -> Engine:
    """100,000 done rows and a few unclaimed jobs, as in production."""
    fill(
        big,
        "INSERT INTO email (recipient, status) SELECT 'r', "
        "CASE WHEN number % 1000 = 0 THEN 'unclaimed' ELSE 'done' END",
        DONE_ROWS,
    )
    fill(
        big,
        "INSERT INTO message (sequence, channel, message_status) SELECT number, 'sms', "
        "CASE WHEN number % 1000 = 0 THEN 'unsent' ELSE 'sent' END",
        DONE_ROWS,
    )
    for table in ("email", "message"):
        analyze(big, table)
    return big


@pytest.mark.parametrize("queue", [JobQueue(Email), JobQueue(Message, Message.channel == "sms")])
def test_the_claim_index_serves_the_claim_without_a_sort(
    done_rows: Engine, strategy: str, queue: JobQueue[Any]
) -> None:
    served = JobQueue(queue.entity, *queue.plan.spec.where, strategy=strategy)
    with done_rows.connect() as connection:
        statements = claim_statements(served, dialect=connection.dialect)

        plan = explained(connection, locking(statements, done_rows))

    assert re.search(rf"'?ix_{queue.entity.__tablename__}_claim\b(?!,)", plan), plan
    assert not re.search(rf"'ix_{queue.entity.__tablename__}_reap'", plan), plan
    assert not sorts_the_queue(plan, done_rows), plan


@pytest.fixture(scope="module")
def many_videos(big: Engine) -> Engine:
    """10,000 published videos, and some that are before or in each step."""
    statuses = [*Video.__queue_args__["ready"], *Video.__queue_args__["during"], "uploaded"]
    waiting = " ".join(f"WHEN {n} THEN '{status}'" for n, status in enumerate(statuses))
    fill(
        big,
        "INSERT INTO video (title, status, owner, owner_date) SELECT 'v', "
        f"CASE number % 500 {waiting} ELSE 'published' END, 'w', '2030-01-01 00:00:00'",
        VIDEO_ROWS,
    )
    analyze(big, "video")
    return big


@pytest.mark.strategies("auto")
def test_the_indexes_serve_every_step_of_a_workflow(many_videos: Engine, strategy: str) -> None:
    for step in videos(strategy=strategy).steps:
        oldest = select(Video.id).where(Video.status == literal_column(f"'{step.during}'"))
        with many_videos.connect() as connection:
            statements = claim_statements(step.queue, dialect=connection.dialect)

            claimed = explained(connection, locking(statements, many_videos))
            reaped = explained(connection, oldest.order_by(Video.owner_date).limit(50))

        for index, plan in (("claim", claimed), ("reap", reaped)):
            assert re.search(rf"ix_video_{index}\b", plan), plan
            assert not sorts_the_queue(plan, many_videos), plan


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("skip_locked", "held", "candidates")
def test_a_claim_locks_what_it_takes_and_little_more(done_rows: Engine, strategy: str) -> None:
    with Session(done_rows) as session:
        taken = claim(session, Email, owner="w", limit=50, strategy=strategy)

        locked = locked_rows(session.connection(), "email")

        assert len(taken) == 50
        assert 50 <= locked <= 60 if done_rows.dialect.name == "mysql" else locked <= 120
        session.rollback()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_predicate_that_no_index_serves_locks_only_what_is_claimed(done_rows: Engine) -> None:
    with Session(done_rows) as session:
        taken = claim(session, Email, Email.recipient.like("r%"), owner="w", limit=20)

        assert taken.candidates is not None  # candidates, by auto
        assert 20 <= locked_rows(session.connection(), "email") <= 50
        session.rollback()


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


@pytest.mark.only_on("postgresql")
@pytest.mark.strategies("auto")
def test_a_young_table_is_not_sorted_before_its_first_analyze(
    fresh_database: URL, strategy: str
) -> None:
    """Even without statistics the planner takes the claim index."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE task SET (autovacuum_enabled = false)"))
    fill(engine, "INSERT INTO task (name, priority) SELECT 'now', number % 3", 20_000)

    for statistics in ("none", "fresh"):
        if statistics == "fresh":
            analyze(engine, "task")
        with Session(engine) as session:
            assert buffers_of(session, strategy) < 2_000, statistics
    engine.dispose()


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
