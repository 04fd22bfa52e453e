"""The code of docs/adding-a-strategy.md is a strategy on every database, with no other file."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, delete, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    PriorityMixin,
    ScheduleMixin,
    claim,
    claim_statements,
    complete,
    enqueue,
    strategies,
)
from tests.support import make_engine

from .added import add_as_told, copied_package, run_copy
from .markdown import code_blocks, page

PAGE = page("docs/adding-a-strategy.md")
MODULE = code_blocks(PAGE, "python")[0]

NAME = "optimistic"


class Base(DeclarativeBase):
    """The base of this test's tables."""


class Letter(JobMixin, Base):
    __tablename__ = "strategy_letter"

    id: Mapped[int] = mapped_column(primary_key=True)


class Parcel(JobMixin, PriorityMixin, ScheduleMixin, Base):
    __tablename__ = "strategy_parcel"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(scope="module")
def tables(db_url: URL) -> Iterator[Engine]:
    """An engine with this test's tables."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(tables: Engine) -> Engine:
    """The engine with empty tables."""
    with tables.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(delete(table))
    return tables


@pytest.fixture
def optimistic() -> Iterator[type[strategies.Strategy]]:
    """Run the page's module; forget the strategy afterwards."""
    exec(MODULE, {"__name__": NAME})
    yield strategies.STRATEGIES[NAME]
    del strategies.STRATEGIES[NAME]


def add_letters(engine: Engine, number: int) -> None:
    with Session(engine) as session:
        enqueue(session, Letter, [{"id": n} for n in range(1, number + 1)])
        session.commit()


@pytest.mark.usefixtures("optimistic")
def test_a_registered_strategy_claims_by_its_name(engine: Engine) -> None:
    add_letters(engine, 3)

    with Session(engine) as session:
        claimed = claim(session, Letter, owner="w", limit=2, strategy=NAME)
        session.commit()

        assert [letter.id for letter in claimed] == [1, 2]
        assert {(letter.status, letter.owner) for letter in claimed} == {("claimed", "w")}


@pytest.mark.usefixtures("optimistic")
def test_a_job_of_a_registered_strategy_is_finished_by_its_fence(engine: Engine) -> None:
    add_letters(engine, 1)
    queue = JobQueue(Letter, strategy=NAME)

    with Session(engine) as session:
        claimed = queue.claim(session, owner="w", limit=5)
        session.commit()
        complete(session, claimed)
        session.commit()

        assert session.scalars(select(Letter.status)).all() == ["done"]
        assert not queue.claim(session, owner="w")


@pytest.mark.usefixtures("optimistic")
def test_a_registered_strategy_claims_plain_rows_priority_by_priority(engine: Engine) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session:
        enqueue(session, Parcel, [{"id": 1}, {"id": 3}], priority=2)
        enqueue(session, Parcel, [{"id": 2}], priority=1)
        enqueue(session, Parcel, [{"id": 4}], priority=1, run_at=tomorrow)
        session.commit()

        rows = JobQueue(Parcel, strategy=NAME).claim_rows(session, owner="w", limit=9)

        assert [row.id for row in rows] == [2, 1, 3]


@pytest.mark.usefixtures("optimistic")
def test_two_claimers_that_read_the_same_jobs_do_not_share_them(engine: Engine) -> None:
    add_letters(engine, 40)
    start = threading.Barrier(4)
    claimed: list[list[int]] = []

    def drain() -> None:
        queue = JobQueue(Letter, strategy=NAME)
        start.wait()
        with Session(engine) as session:
            for _ in range(10):
                claimed.append([job.id for job in queue.claim(session, owner="w", limit=5)])
                session.commit()

    threads = [threading.Thread(target=drain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(number for batch in claimed for number in batch) == list(range(1, 41))


@pytest.mark.usefixtures("optimistic")
def test_the_statements_of_a_registered_strategy_are_shown_and_errors_name_it() -> None:
    statements: list[Any] = claim_statements(Letter, dialect="sqlite", strategy=NAME)

    sql = [str(statement.compile(dialect=sqlite.dialect())) for statement in statements]
    assert [text[:6] for text in sql] == ["SELECT", "UPDATE", "SELECT"]
    with pytest.raises(ArgumentError, match=f"use 'auto' or one of .*{NAME}"):
        JobQueue(Letter, strategy="pessimistic")


def test_a_name_that_is_taken_is_refused(optimistic: type[strategies.Strategy]) -> None:
    class Another(optimistic):  # type: ignore[misc,valid-type]  # the class is made by the page
        """Its name is that of the page's strategy."""

    strategies.register(optimistic)  # a second time is no harm

    with pytest.raises(ArgumentError, match=f"a strategy '{NAME}' already"):
        strategies.register(Another)


def test_a_strategy_is_unknown_before_it_is_registered() -> None:
    with pytest.raises(ArgumentError, match=f"there is no strategy '{NAME}'"):
        JobQueue(Letter, strategy=NAME)


def test_the_module_of_a_strategy_imports_only_public_names() -> None:
    imports = [node for node in ast.walk(ast.parse(MODULE)) if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in imports if str(node.module).startswith("sa_jobqueue")}
    names = {
        name.name
        for node in imports
        if node.module == "sa_jobqueue.strategies"
        for name in node.names
    }

    assert modules == {"sa_jobqueue.dialects", "sa_jobqueue.strategies"}
    assert names <= set(strategies.__all__)


def test_the_parts_that_the_page_names_are_public() -> None:
    parts = {"Mark", "LockingRead", "ReadBack", "ReadyLock", "CandidateReads", "Writer"}

    assert all(f"| `{part}` |" in PAGE for part in parts)
    assert parts <= set(strategies.__all__)


def test_the_command_line_shows_its_statements_with_one_module_added(tmp_path: Path) -> None:
    names = add_as_told(PAGE, copied_package(tmp_path))
    queue = "import optimistic, sa_jobqueue, shop\n"
    queue += f"QUEUE = sa_jobqueue.JobQueue(shop.Email, strategy={NAME!r})\n"
    (tmp_path / "outbox.py").write_text(queue, encoding="utf-8")

    result = run_copy(tmp_path, "sql", "outbox:QUEUE", "--dialect", "postgresql")

    assert names == ["optimistic.py"]
    assert "UPDATE email SET status='claimed'" in " ".join(result.stdout.split()), result.stderr
