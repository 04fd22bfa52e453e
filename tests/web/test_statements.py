"""No page reads done rows: each statement goes by an index, however big the table is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim
from sa_jobqueue.overview.schema import forget_schema
from sa_jobqueue.web import Access, Visitor, app
from tests.contract.plans import analyze, fill, rows_read
from tests.support import make_engine

from .conftest import OURS
from .models import QUEUES, Base, Email

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("web")]

DONE, OTHERS = 20_000, 300

#: What a page may read: a page of jobs twice, what is counted, and little else.
READ = 4_000

PAGES = [
    "/",
    "/queues/emails",
    "/queues/emails?show=claimed",
    "/queues/emails?show=due",
    "/queues/emails?show=later",
    "/queues/emails?show=cancelled",
    "/queues/emails/jobs/19999",
    "/workers",
    "/schedules",
    "/doctor",
]


@pytest.fixture(scope="module")
def big(db_url: URL) -> Iterator[TestClient]:
    """A page over a table with many done rows, before and behind the others."""
    forget_schema()
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    columns = "(recipient, status, owner_date, run_at, attempts, priority)"
    for status, number in (("done", DONE), ("failed", OTHERS), ("cancelled", OTHERS)):
        values = f"'ann', '{status}', '2020-01-01 00:00:00', '2020-01-01 00:00:00', 1, 0"
        fill(engine, f"INSERT INTO page_email {columns} SELECT {values}", number)
    for moment in ("2020-01-01", "2099-01-01"):
        values = f"'ann', 'unclaimed', NULL, '{moment} 00:00:00', 0, number % 3"
        fill(engine, f"INSERT INTO page_email {columns} SELECT {values}", OTHERS)
    analyze(engine, "page_email")
    with Session(engine) as session:
        claim(session, Email, owner="w", limit=100)
        session.commit()
    site = app(engine, QUEUES, authorize=lambda _: Visitor("ada", Access.ADMIN))
    yield TestClient(site, headers=OURS)
    site.state.site.samples.stop()
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


def rows_of(engine: Engine, work: Any) -> int:
    """Count the rows that the pages' own connection reads."""
    with engine.connect() as connection:
        return int(rows_read(connection))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_reads_no_done_rows(big: TestClient, path: str) -> None:
    engine: Engine = big.app.state.site.engine  # type: ignore[attr-defined]
    big.app.state.site.samples.stop()  # type: ignore[attr-defined]
    big.get(path)
    with engine.connect() as connection:  # the pool's only connection: that of the page
        before = rows_read(connection)

    answer = big.get(path)

    big.app.state.site.samples.stop()  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert rows_read(connection) - before < READ
    assert answer.status_code == 200


@pytest.mark.parametrize("show", ["failed", "claimed", "due", "later", "cancelled"])
def test_a_later_page_of_a_list_reads_no_done_rows(big: TestClient, show: str) -> None:
    engine: Engine = big.app.state.site.engine  # type: ignore[attr-defined]
    found = re.search(r'rel="next" href="(.+?)"', big.get(f"/queues/emails?show={show}").text)
    assert found is not None
    address = "/queues/emails" + found[1].replace("&amp;", "&")
    with engine.connect() as connection:
        before = rows_read(connection)

    answer = big.get(address)

    big.app.state.site.samples.stop()  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert rows_read(connection) - before < READ
    assert answer.text.count('type="checkbox"') >= 50


def test_an_action_reads_no_done_rows(big: TestClient) -> None:
    engine: Engine = big.app.state.site.engine  # type: ignore[attr-defined]
    with Session(engine) as session:
        key = session.scalar(text("SELECT MAX(id) FROM page_email WHERE status = 'failed'"))
    form = {"verb": "retry", "key": str(key), "confirm": "yes"}
    with engine.connect() as connection:
        before = rows_read(connection)

    answer = big.post("/queues/emails", data=form)

    with engine.connect() as connection:
        assert rows_read(connection) - before < READ
    assert "1 job retried" in answer.text
