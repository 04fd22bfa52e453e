"""No page reads done rows: each statement goes by an index, however big the table is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import URL, QueuePool, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim
from sa_jobqueue.counts.count import forget_schema
from sa_jobqueue.web import Access, Visitor, app
from tests.contract.plans import analyze, assert_by_index, fill, plans, rows_read
from tests.support import make_engine

from .conftest import OURS, preview_of
from .models import QUEUES, Base, Email

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("web")]

DONE, OTHERS = 20_000, 300

#: What a page may read: the 1,200 other rows, some of them for several figures and, with a plan
#: for each statement, again.
READ = 8_000

SHOWN = ("failed", "claimed", "due", "later", "cancelled")


@pytest.fixture(scope="module")
def big(db_url: URL) -> Iterator[TestClient]:
    """A page over a table with many done rows, before and behind the others."""
    forget_schema()
    engine = make_engine(db_url, poolclass=QueuePool, pool_size=1, max_overflow=0)
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
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def reading_by_index(page: TestClient) -> Iterator[None]:
    """Refuse what reads the table by anything but an index, or too many rows of it."""
    site = page.app.state.site  # type: ignore[attr-defined]  # it is a Starlette
    with site.engine.connect() as connection:  # the pool's only one, so that of the page
        before = rows_read(connection)
    with plans(site.engine, "page_email") as steps:
        yield
    with site.engine.connect() as connection:
        assert rows_read(connection) - before < READ
    assert_by_index(site.engine, steps, "page_email")


def test_a_page_reads_no_done_rows(big: TestClient) -> None:
    lists = [f"/queues/emails?show={show}" for show in SHOWN]
    for path in ("/", *lists):
        big.get(path)  # asks for the indexes, once a minute
        with reading_by_index(big):
            answer = big.get(path)
        assert answer.status_code == 200
        if path == "/":
            continue
        found = re.search(r'rel="next" href="(.+?)"', answer.text)
        assert found is not None, path
        with reading_by_index(big):
            answer = big.get("/queues/emails" + found[1].replace("&amp;", "&"))
        assert answer.text.count('type="checkbox"') >= 50


def test_what_goes_by_the_key_reads_no_done_rows(big: TestClient) -> None:
    site = big.app.state.site  # type: ignore[attr-defined]  # it is a Starlette
    with Session(site.engine) as session:
        key = str(session.scalar(text("SELECT MAX(id) FROM page_email WHERE status = 'failed'")))
        before = rows_read(session.connection())
    form = {"verb": "retry", "key": key}

    with plans(site.engine, "page_email") as steps:
        job = big.get(f"/queues/emails/jobs/{key}")
        preview = preview_of(big, "/queues/emails", form)
    result = big.post("/queues/emails", data={**form, "confirm": "yes"})

    with site.engine.connect() as connection:
        assert rows_read(connection) - before < READ
    assert not [step for step in steps if "SCAN" in step], steps
    assert (job.status_code, preview.status_code) == (200, 200)
    assert "1 job retried" in result.text
