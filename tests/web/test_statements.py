"""No page reads done rows, however big the table is."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import URL, QueuePool, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim
from sa_jobqueue.web import Access, Visitor, app
from tests.contract.plans import analyze, fill, rows_read
from tests.support import make_engine

from .conftest import OURS, preview_of
from .models import QUEUES, Base, Email

DONE, OTHERS = 20_000, 300

#: What a page may read: the 1,200 other rows, some of them for several figures.
READ = 8_000

SHOWN = ("failed", "claimed", "due", "later", "cancelled")


@pytest.mark.load
def test_no_page_reads_done_rows(fresh_database: URL) -> None:
    engine = make_engine(fresh_database, poolclass=QueuePool, pool_size=1, max_overflow=0)
    Base.metadata.create_all(engine)
    columns = "(recipient, status, owner_date, run_at, attempts, priority)"
    for status, moment, number in (
        *(("done", "2020-01-01", DONE), ("failed", "2020-01-01", OTHERS)),
        *(("cancelled", "2020-01-01", OTHERS), ("unclaimed", "2020-01-01", OTHERS)),
        ("unclaimed", "2099-01-01", OTHERS),
    ):
        values = f"'ann', '{status}', '2020-01-01 00:00:00', '{moment} 00:00:00', 1, number % 3"
        fill(engine, f"INSERT INTO page_email {columns} SELECT {values}", number)
    analyze(engine, "page_email")
    with Session(engine) as session:
        claim(session, Email, owner="w", limit=100)
        session.commit()
        key = str(session.scalar(text("SELECT MAX(id) FROM page_email WHERE status = 'failed'")))
    site = app(engine, QUEUES, authorize=lambda _: Visitor("ada", Access.ADMIN))
    page = TestClient(site, headers=OURS)
    form = {"verb": "retry", "key": key}

    def look(path: str) -> str:
        page.get(path)  # asks for the indexes, once a minute
        before = count()
        answer = page.get(path)
        assert (answer.status_code, count() - before < READ) == (200, True), path
        return answer.text.replace("&amp;", "&")

    def count() -> int:
        with engine.connect() as connection:  # the pool's only one, so that of the page
            return rows_read(connection)

    look("/")
    for show in SHOWN:
        (after,) = re.findall(r'rel="next" href="(.+?)"', look(f"/queues/emails?show={show}"))
        assert look(f"/queues/emails{after}").count('type="checkbox"') >= 50
    look(f"/queues/emails/jobs/{key}")
    before = count()
    preview_of(page, "/queues/emails", form)
    result = page.post("/queues/emails", data={**form, "confirm": "yes"})

    assert (count() - before < READ, "1 job retried" in result.text) == (True, True)
    engine.dispose()
