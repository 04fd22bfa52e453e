"""After many new rows PostgreSQL's planner knows of them: no claim sorts the queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, enqueue
from tests.contract.owners.restricted_user import restricted_user
from tests.support import make_engine, statements_seen

pytestmark = pytest.mark.only_on("postgresql")

ROWS = 20_000


class Base(DeclarativeBase):
    pass


class Circular(JobMixin, Base):
    """Long texts by their declared width: so the planner guesses few rows."""

    __tablename__ = 'circular "%s"'
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255))


TABLE = '"circular ""%s"""'


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    """A table that nobody but us analyzes."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    run(engine, f"ALTER TABLE {TABLE} SET (autovacuum_enabled = false)")
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def circulars(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "text": "x"} for number in range(first, first + count)]


def test_a_table_that_has_hardly_grown_is_not_analyzed_again(engine: Engine) -> None:
    with Session(engine) as session, statements_seen(engine) as seen:
        enqueue(session, Circular, circulars(60_000))
        session.commit()
        analyzed = [statement for statement in seen if statement.startswith("ANALYZE")]
        assert len(analyzed) == 1
        seen.clear()

        enqueue(session, Circular, circulars(5_000, 60_001))

        assert not [statement for statement in seen if statement.startswith("ANALYZE")]


def test_a_user_who_may_not_analyze_inserts_all_the_same_and_is_told(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.enqueue")
    with restricted_user(engine) as theirs, Session(theirs) as session:
        assert enqueue(session, Circular, circulars(ROWS)) == ROWS
        session.commit()

    assert "20000 rows are new in circular" in caplog.text


def test_under_autocommit_nothing_can_fail_after_the_rows_are_there(engine: Engine) -> None:
    own = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(own) as session, statements_seen(engine) as seen:
        enqueue(session, Circular, circulars(ROWS))

    assert not [statement for statement in seen if statement.startswith("ANALYZE")]
