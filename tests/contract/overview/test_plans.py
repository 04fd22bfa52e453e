"""No statement of an overview reads done rows, or more than it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, inspect, text
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.overview import failed_jobs, overview
from sa_jobqueue.overview.schema import forget_schema
from tests.contract.plans import analyze, fill, nodes, rows_read
from tests.support import make_engine

from .models import Base, Parcel, Postcard, boxes, parcels

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("overview")]

DONE, DUE = 20_000, 10_500

#: With fewer jobs PostgreSQL's planner goes by index of its own accord.
MANY_DUE = 30_000

#: What an overview may read: 10,001 due jobs, which InnoDB writes to a derived table and reads
#: there again, and little else.
READ = 20_500


@pytest.fixture(scope="module")
def big(db_url: URL) -> Iterator[Engine]:
    """Two tables with many done rows, behind which jobs wait."""
    forget_schema()
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    many_due = MANY_DUE if engine.dialect.name == "postgresql" else DUE
    done = "CASE WHEN number % 10000 = 0 THEN 'failed' ELSE 'done' END, '2020-01-01 00:00:00'"
    fill(engine, f"INSERT INTO sent_parcel (kind, status, owner_date) SELECT 'box', {done}", DONE)
    fill(engine, "INSERT INTO sent_parcel (kind, priority) SELECT 'box', number % 3", DUE)
    fill(engine, f"INSERT INTO postcard (status, owner_date) SELECT {done}", DONE)
    fill(engine, "INSERT INTO postcard (status) SELECT 'unclaimed'", many_due)
    for table in ("sent_parcel", "postcard"):
        analyze(engine, table)
    yield engine
    # Dropped and made anew: to delete the rows took MySQL 3 seconds.
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def plans(engine: Engine) -> Iterator[list[str]]:
    """Explain each statement, just before it runs: with the settings that it runs with."""
    explain = {"postgresql": "EXPLAIN (FORMAT JSON)", "sqlite": "EXPLAIN QUERY PLAN"}
    found: list[str] = []

    def note(_c: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if " sent_parcel" in statement or " postcard" in statement:
            asking = cursor.connection.cursor()
            asking.execute(f"{explain.get(engine.dialect.name, 'EXPLAIN')} {statement}", parameters)
            rows = asking.fetchall()
            found.extend(_steps(engine.dialect.name, rows))

    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def _steps(alias: str, rows: Any) -> Iterator[str]:
    """Write each step that reads a table as words, the table's scans by the word SCAN."""
    if alias == "postgresql":
        plan = rows[0][0] if isinstance(rows[0][0], list) else json.loads(rows[0][0])
        for node in nodes(plan[0]["Plan"]):
            if "Relation Name" in node:
                scan = "SCAN" if node["Node Type"] == "Seq Scan" else node["Node Type"]
                yield f"{scan} {node['Relation Name']} {node.get('Index Name')}"
    else:
        yield from (str(tuple(row)) for row in rows)


@pytest.mark.parametrize("queue", [parcels, boxes, Postcard], ids=["parcels", "boxes", "postcards"])
def test_an_overview_reads_no_done_rows(big: Engine, queue: Any) -> None:
    with Session(big) as session:
        claim(session, Parcel, owner="w", limit=3)
        overview(session, [queue])  # asks for the indexes, once a minute
        before = rows_read(session.connection())

        with plans(big) as steps:
            (seen,) = overview(session, [queue])

        assert rows_read(session.connection()) - before < READ
        assert_by_index(big, steps)
        session.rollback()
    assert str(seen.due) == "10,000+"


def test_failed_jobs_are_listed_by_their_index(big: Engine) -> None:
    with Session(big) as session:
        failed_jobs(session, Parcel, limit=1)
        before = rows_read(session.connection())

        with plans(big) as steps:
            (newest,) = failed_jobs(session, Parcel, limit=1)
            failed_jobs(session, Parcel, limit=2, before=newest)

        assert rows_read(session.connection()) - before < 50
        assert_by_index(big, steps)


def assert_by_index(engine: Engine, steps: list[str]) -> None:
    """Refuse scans of a table, and walks along its primary key."""
    assert steps
    tables = ("sent_parcel", "postcard")
    if engine.dialect.name == "postgresql":
        assert not [step for step in steps if "SCAN" in step or "pkey" in step], steps
    if engine.dialect.name == "sqlite":
        scans = [step for step in steps if any(f"SCAN {table}" in step for table in tables)]
        assert not scans, steps
        assert not [step for step in steps if "SEARCH" in step and "INDEX ix_" not in step], steps


def test_the_index_of_failed_jobs_is_small_where_the_database_can(big: Engine) -> None:
    indexes: dict[Any, Any] = {
        index["name"]: index for index in inspect(big).get_indexes("sent_parcel")
    }

    assert indexes["ix_sent_parcel_failed"]["column_names"] == ["status", "owner_date", "id"]
    if big.dialect.name == "postgresql":
        assert "postgresql_where" in indexes["ix_sent_parcel_failed"]["dialect_options"]
    if big.dialect.name == "sqlite":
        with big.connect() as connection:
            made = text("SELECT sql FROM sqlite_master WHERE name = 'ix_sent_parcel_failed'")
            assert "WHERE" in connection.execute(made).scalar_one()


@pytest.mark.only_on("postgresql")
def test_settings_of_the_session_are_as_before(big: Engine) -> None:
    names = ("enable_seqscan", "enable_bitmapscan", "enable_indexscan")
    with Session(big) as session:
        session.execute(text("SET LOCAL enable_indexscan = off"))

        overview(session, [parcels])

        now = [session.execute(text(f"SHOW {name}")).scalar_one() for name in names]
    assert now == ["on", "on", "off"]
