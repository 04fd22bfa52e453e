"""How many rows are read for a position and for a rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, finish_rate, position, positions
from tests.contract.plans import analyze, fill, rows_read
from tests.models import Base as ModelsBase
from tests.models import Email, Task
from tests.support import make_engine

#: Due jobs; jobs due tomorrow at a better priority; done rows.
WAITING, LATER, DONE = 40_000, 40_000, 40_000
IN_FULL = 100_000


@pytest.fixture(scope="module")
def big(db_url: URL, full: bool) -> Iterator[Engine]:
    """A long queue with rows of every kind."""
    engine = make_engine(db_url)
    ModelsBase.metadata.drop_all(engine)  # rows that other tests left would change the plans
    ModelsBase.metadata.create_all(engine)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    waiting, later, done = [IN_FULL] * 3 if full else [WAITING, LATER, DONE]
    fill(engine, "INSERT INTO task (name, priority) SELECT 'now', number % 3", waiting)
    fill(engine, f"INSERT INTO task (name, priority, run_at) SELECT 'l', -1, '{tomorrow}'", later)
    dated = "INSERT INTO email (recipient, status, owner_date) "
    fill(engine, f"{dated} SELECT 'n', 'done', '2020-01-01 00:00:00'", done)
    fill(engine, "INSERT INTO email (recipient) SELECT 'r'", waiting)
    analyze(engine, "task")
    analyze(engine, "email")
    yield engine
    ModelsBase.metadata.drop_all(engine)
    ModelsBase.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def counted(session: Session) -> Iterator[list[int]]:
    """Count the rows that statements read, as each database can tell: at least so many.

    PostgreSQL tells pages; SQLite tells its steps, of which a row takes about ten.
    """
    connection, found = session.connection(), list[int]()
    alias = connection.dialect.name
    if alias == "sqlite":
        driver: Any = connection.connection.driver_connection
        steps: list[int] = []
        driver.set_progress_handler(lambda: bool(steps.append(1)), 100)  # type: ignore[func-returns-value]  # False: go on
        yield found
        driver.set_progress_handler(None, 0)
        found.append(len(steps) * 10)
    elif alias == "postgresql":
        with explained_pages(connection.engine) as pages:
            yield found
        found.append(sum(pages))
    else:
        begun = rows_read(connection)
        yield found
        found.append(rows_read(connection) - begun)


@contextmanager
def explained_pages(engine: Engine) -> Iterator[list[int]]:
    """Ask PostgreSQL for the pages that each SELECT touches, before running it."""
    pages: list[int] = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
            plan = cursor.fetchone()[0][0]["Plan"]
            pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield pages
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def at(session: Session, entity: Any, place: int) -> Any:
    """Return the job at a position."""
    claimed = claim(session, entity, owner="w", limit=place)
    key = claimed[-1].id
    session.rollback()
    return session.get_one(entity, key)


pytestmark = [pytest.mark.load, pytest.mark.xdist_group("positions")]


@pytest.mark.parametrize("entity", [Email, Task])
def test_a_position_near_the_head_reads_few_rows(big: Engine, entity: type[Any]) -> None:
    with Session(big) as session:
        job = at(session, entity, 20)

        with counted(session) as read:
            place = position(session, job)

        assert place == 20
        assert read[0] < 150


@pytest.mark.only_on("postgresql")
def test_a_position_near_the_head_reads_few_rows_under_autocommit(big: Engine) -> None:
    with Session(big) as session:
        key = at(session, Email, 20).id
    autocommit = big.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session:
        job = session.get_one(Email, key)

        with counted(session) as read:
            place = position(session, job)

        assert place == 20
        assert 0 < read[0] < 150


@pytest.mark.parametrize("entity", [Email, Task])
def test_many_positions_near_the_head_read_few_rows(big: Engine, entity: type[Any]) -> None:
    with Session(big) as session:
        jobs = list(claim(session, entity, owner="w", limit=20))
        session.rollback()
        session.scalars(select(entity).where(entity.id.in_([job.id for job in jobs]))).all()

        with counted(session) as read:
            places = positions(session, jobs)

        assert places == [*range(1, 21)]
        assert read[0] < 800


def test_a_job_due_later_or_claimed_has_no_position_without_reading_the_queue(big: Engine) -> None:
    with Session(big) as session:
        later = session.scalars(select(Task).where(Task.priority == -1).limit(1)).one()
        (claimed,) = claim(session, Task, owner="w")

        with counted(session) as read:
            places = [position(session, later), position(session, claimed)]

        assert places == [None, None]
        assert read[0] < 100
        session.rollback()


def test_a_position_behind_jobs_due_later_does_not_read_them(big: Engine) -> None:
    """Only the due rows of the two better priorities count."""
    with Session(big) as session:
        behind = func.min(Task.id)
        key = session.scalar(select(behind).where(Task.status == "unclaimed", Task.priority == 1))
        job = session.get_one(Task, key)
        sooner = (Task.priority == 0, Task.status == "unclaimed")
        expected = session.scalar(select(func.count()).where(*sooner)) or 0

        with counted(session) as read:
            place = position(session, job)

        assert place == expected + 1
        assert read[0] < expected + 100 if rows_are_counted(session) else read[0] < expected


def rows_are_counted(session: Session) -> bool:
    return session.connection().dialect.name in ("mysql", "mariadb")


@pytest.mark.only_on("mysql", "mariadb")
def test_old_finishes_are_not_read_for_the_rate(big: Engine) -> None:
    with Session(big) as session:
        complete(session, claim(session, Email, owner="w", limit=10))

        with counted(session) as read:
            rate = finish_rate(session, Email)

        assert rate == pytest.approx(10 / 300)
        assert read[0] < 100
        session.rollback()
