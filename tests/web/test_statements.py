"""No page reads done rows, however big the table is; a count of them ends at 10,000."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import URL, Engine, QueuePool, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim
from sa_jobqueue.web import Access, Visitor, app
from tests.contract.plans import analyze, fill, rows_read_before
from tests.support import heard, make_engine

from .conftest import OURS, Open, preview_of
from .models import QUEUES, Base, Email, check, plain

DONE, OTHERS = 20_000, 300

#: What a page may read: the 1,200 other rows, some of them for several figures.
READ = 8_000

SHOWN = ("failed", "claimed", "due", "later", "cancelled")


def test_the_first_page_reads_all_queues_by_a_few_statements(
    engine: Engine, open_page: Open
) -> None:
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    def statements(number: int) -> int:
        page = open_page(queues={f"plain{each}": plain for each in range(number)})
        page.get("/")  # asks for the table, once a minute
        sent.clear()
        assert page.get("/").status_code == 200
        return len(sent)

    with heard(engine, "before_cursor_execute", note):
        one, many = statements(1), statements(20)

    assert (one <= 10, many <= one + 2) == (True, True), (one, many)


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
    for status, number in {"published": DONE, "submitted": OTHERS, "at farm": OTHERS}.items():
        clips = f"INSERT INTO page_clip (status, owner_date, attempts) SELECT '{status}', "
        fill(engine, f"{clips} '2020-01-01 00:00:00', 1", number)
    analyze(engine, "page_clip")
    with Session(engine) as session:
        claim(session, Email, owner="w", limit=100)
        session.commit()
        key = str(session.scalar(text("SELECT MAX(id) FROM page_email WHERE status = 'failed'")))
    queues = {**QUEUES, "check": check}
    site = app(engine, queues, authorize=lambda _: Visitor("ada", Access.ADMIN))
    page = TestClient(site, headers=OURS)
    form = {"verb": "retry", "key": key}

    def look(path: str, most: int = READ) -> str:
        page.get(path)  # asks for the indexes, once a minute
        before = count()
        answer = page.get(path)
        assert (answer.status_code, count() - before < most) == (200, True), path
        return answer.text.replace("&amp;", "&")

    def count() -> int:
        with engine.connect() as connection:  # the pool's only one, so that of the page
            return rows_read_before(connection)

    look("/")
    for show in SHOWN:
        (after,) = re.findall(r'rel="next" href="(.+?)"', look(f"/queues/emails?show={show}"))
        assert look(f"/queues/emails{after}").count('type="checkbox"') >= 50
    look(f"/queues/emails/jobs/{key}")
    look("/doctor")
    # Where an index finds what a workflow has done, 10,001 entries are read, and then counted.
    graph = look("/queues/check?show=due", READ + 2 * 10_001)
    assert "<bdi>submitted</bdi> <b" in graph
    for show in SHOWN:
        look(f"/previews/emails?all={'release' if show == 'claimed' else 'cancel'}&show={show}")
    before = count()
    preview_of(page, "/queues/emails", form)
    result = page.post("/queues/emails", data={**form, "confirm": "yes"})

    assert (count() - before < READ, "1 job retried" in result.text) == (True, True)
    engine.dispose()
