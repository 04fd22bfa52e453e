"""The pages of all queues, and of a queue with its jobs by their state."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import JobQueue, Owner, claim
from sa_jobqueue.control import pause, register_worker

# Inner: nobody waits until 10,000 jobs are due, or for half an hour.
from sa_jobqueue.counts import Count
from sa_jobqueue.web.site import Sample

from .conftest import LONG_AGO, Open, add, failed, keys_shown, preview_of, texts
from .models import QUEUES, TABLES, Email, Plain, Scan, Visit, absent, emails

TABS = ("Failed", "Claimed", "Due", "Later", "Cancelled")

PAYLOAD = """<script>alert(1)</script>"'&"""


NOWHERE = (
    *("/nowhere", "/queues", "/queues/other", "/queues/page_email", "/queues/emails?show=done"),
    *("/queues/emails?key=x", "/queues/other/jobs/1", "/queues/emails/jobs/7"),
    *("/queues/emails/jobs/x", "/queues/emails/jobs/9999999999999999999999"),
    *("/queues/visits/jobs/north", "/queues/visits/jobs/a%00b,7", "/queues/scans/jobs/7"),
    *("/static/../application.py", "/static/%2e%2e%2fapplication.py"),
)

#: Places in a list that there are not.
AFTER = (
    *("", "x", ",", "1", "x,1", "2020-01-01", "2020-01-01,x", "0001-01-01T00:00:00+09:00,1"),
    *("1,2,1", "0,2020-01-01", "0,2020-01-01,x", f"{9**30},2020-01-01,1", "0,2020-01-01,1,1"),
    *("0,0001-01-01T00:00:00+09:00,1", "," * 5_000, "0,2020-01-01\\"),
)


def later(key: int, **values: Any) -> Email:
    moment = datetime.now(UTC) + timedelta(hours=key)
    return Email(**{"id": key, "run_at": moment, **values})


def test_the_first_page_shows_what_each_queue_holds(page: TestClient, session: Session) -> None:
    add(session, Email(id=1), Email(id=2), later(3), failed(4), Plain(id=1))
    claim(session, Email, owner="w", limit=1)
    register_worker(session, "w", [emails], tables=TABLES)
    pause(session, emails, tables=TABLES)
    session.commit()

    answer = page.get("/")

    names, cells = texts(answer, "th")[10:], texts(answer, "td")
    due, _, next_due, claimed, failed_, _, workers = cells[:7]
    assert (due, claimed, failed_, workers) == ("0 1 behind", "1", "1", "1")
    assert re.findall(r'href="(/queues/emails\?show=\w+)"', answer.text) == [
        f"/queues/emails?show={show}" for show in ("due", "claimed", "failed")
    ]
    assert next_due in ("2h 59m", "3h 0m")
    assert names == ["emails paused", "visits", "scans", "plain"]
    assert cells[-9] == "1"


def test_each_tab_has_its_number_and_says_what_waits_behind_a_key(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1), Email(id=2), Email(id=3), later(4, priority=2), later(5), failed(6))
    claim(session, Email, owner="w", limit=1)
    session.commit()

    answer = page.get("/queues/emails?show=due")

    tabs = [text for text in texts(answer, "a") if text.split()[0] in TABS]
    assert tabs == ["Failed 1", "Claimed 1", "Due 0", "Later 2", "Cancelled 0"]
    assert keys_shown(answer) == ["2", "3"]
    told = "2 of these wait behind others of their key: no claim can get them now."
    assert told in texts(answer, "p")


@pytest.mark.parametrize(
    ("waiting", "rate", "told"),
    [
        (Count(10_000, more=True), None, ["due jobs of the last half hour, at most 10,000+"]),
        (Count(7), 0.0, ["due jobs of the last half hour, at most 7", "at most 0"]),
    ],
)
def test_a_plot_says_its_most_and_draws_nothing_that_is_not_known(
    page: TestClient, waiting: Count, rate: float | None, told: list[str]
) -> None:
    kept = page.app.state.sites[""].samples  # type: ignore[attr-defined]  # of Starlette
    now = time.monotonic()
    kept["emails"] = deque(Sample(waiting, rate, taken=now - age) for age in (30.0, 20.0, 10.0))

    answer = page.get("/queues/emails")

    titles = texts(answer, "title")[1:]
    assert [title for title, end in zip(titles, told, strict=True) if title.endswith(end)] == titles
    assert str(waiting) in texts(answer, "figcaption")[0]


@pytest.mark.only_on("sqlite", "postgresql")
def test_without_an_index_the_last_rows_are_looked_at_and_the_page_says_so(
    page: TestClient, session: Session
) -> None:
    scan = Scan(status="failed", owner_date=LONG_AGO)
    add(session, scan)
    small = page.get("/queues/scans?show=failed").text
    done = [{"status": "done", "owner_date": LONG_AGO} for _ in range(10_001)]
    session.execute(insert(Scan), done)
    session.commit()

    first, large = page.get("/").text, page.get("/queues/scans?show=failed").text

    assert str(scan.id) in small
    assert "may lack jobs" not in small
    assert "not indexed" in first
    assert "only the 10,000 rows with the largest keys" in large


def test_a_queue_without_a_table_says_how_to_get_it(open_page: Open) -> None:
    page = open_page(queues={**QUEUES, "absent": absent})

    first, own = page.get("/"), page.get("/queues/absent")

    assert first.status_code == own.status_code == 200
    assert "Run your migration" in first.text
    assert "page_absent" in own.text


def test_each_state_has_its_list(page: TestClient, session: Session) -> None:
    add(session, Email(id=1, priority=5), Email(id=2), later(3), later(4, priority=-1))
    add(session, failed(5), failed(6), Email(id=7))
    add(session, Email(id=8, status="cancelled", owner_date=LONG_AGO))
    add(session, Email(id=9, status="done", owner_date=LONG_AGO))
    claim(session, Email, Email.id == 7, owner="w")
    session.commit()

    shown = {
        show: keys_shown(page.get(f"/queues/emails?show={show}"))
        for show in ("failed", "claimed", "due", "later", "cancelled")
    }

    assert shown == {
        "failed": ["6", "5"],
        "claimed": ["7"],
        "due": ["2", "1"],
        "later": ["4", "3"],
        "cancelled": ["8"],
    }


@pytest.mark.parametrize("show", ["failed", "claimed", "due", "later", "cancelled"])
def test_a_list_has_fifty_jobs_on_a_page(page: TestClient, session: Session, show: str) -> None:
    make: Any = {
        "failed": lambda key: failed(key // 3, id=key),
        "cancelled": lambda key: failed(key // 3, id=key, status="cancelled"),
        "due": lambda key: Email(id=key, priority=key % 3, run_at=LONG_AGO),
        "later": lambda key: later(1 + key // 7, id=key, priority=key % 2),
        "claimed": lambda key: Email(id=key),
    }[show]
    add(session, *(make(key) for key in range(1, 121)))
    if show == "claimed":
        claim(session, Email, owner="w", limit=200)
        session.commit()

    pages, address = [], f"/queues/emails?show={show}"
    for _ in range(3):
        answer = page.get(address)
        pages.append(keys_shown(answer))
        found = re.search(r'<a id="next" rel="next" href="(.+?)"', answer.text)
        address = "/queues/emails" + (found[1].replace("&amp;", "&") if found else "")

    assert [len(keys) for keys in pages] == [50, 50, 20]
    assert sorted(int(key) for keys in pages for key in keys) == list(range(1, 121))
    assert found is None


@pytest.mark.parametrize("show", ["failed", "claimed", "due", "later", "mine"])
def test_a_page_of_a_list_that_cannot_be_is_not_found(open_page: Open, show: str) -> None:
    page = open_page(queues={"emails": emails, "mine": JobQueue(Email, order_by=Email.body)})
    queue, which = ("mine", "due") if show == "mine" else ("emails", show)

    answers = {
        after: page.get(f"/queues/{queue}", params={"show": which, "after": after}).status_code
        for after in AFTER
    }

    assert answers == dict.fromkeys(AFTER, 404)


def test_due_jobs_in_an_order_of_ones_own_have_one_page(open_page: Open, session: Session) -> None:
    page = open_page(queues={"mine": JobQueue(Email, order_by=Email.body.desc())})
    add(session, *(Email(id=key, body=f"{key:03}") for key in range(1, 61)))

    answer = page.get("/queues/mine?show=due")

    assert keys_shown(answer) == [str(key) for key in range(60, 10, -1)]
    assert 'rel="next"' not in answer.text


def test_claimed_jobs_show_whether_their_owners_live(
    page: TestClient, session: Session, engine: Any
) -> None:
    add(session, Email(id=1), Email(id=2))
    with Owner(engine, "living") as owner:
        claim(session, Email, Email.id == 1, owner=owner)
        claim(session, Email, Email.id == 2, owner="plain name")
        session.commit()
        living = page.get("/queues/emails?show=claimed").text
    dead = page.get("/queues/emails?show=claimed").text

    states = [re.findall(r'class="state (\w+)"', text) for text in (living, dead)]
    assert states == [["alive", "unknown"], ["dead", "unknown"]]


def test_what_a_job_says_is_text_and_no_markup(page: TestClient, session: Session) -> None:
    add(
        session,
        failed(1, last_error=PAYLOAD, recipient=PAYLOAD[:50]),
        Visit(region=PAYLOAD, number=1),
    )

    pages = [
        page.get("/queues/emails"),
        page.get("/queues/emails/jobs/1"),
        page.get("/queues/visits?show=due"),
        page.get("/queues/emails", params={"show": PAYLOAD}),
        page.get(f"/queues/{PAYLOAD}"),
        page.get("/queues/emails", params={"key": PAYLOAD}),
        preview_of(page, "/queues/visits", {"verb": "cancel", "key": f"{PAYLOAD},1"}),
        page.get("/previews/visits", params={"verb": PAYLOAD}),
        page.post("/queues/visits", data={"verb": PAYLOAD}),
        page.post("/schedules", data={"verb": "run", "name": PAYLOAD}),
    ]

    for answer in pages:
        assert "&lt;script&gt;alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert PAYLOAD[-3:] not in answer.text


@pytest.mark.parametrize(
    ("queue", "typed", "path"),
    [
        ("emails", " 7 ", "/queues/emails/jobs/7"),
        ("visits", "north,7", "/queues/visits/jobs/north,7"),
        ("visits", r"a\,b/c~d?,7", "/queues/visits/jobs/a%5C,b~1c~0d%3F,7"),
        ("scans", f"{uuid.UUID(int=7)}", f"/queues/scans/jobs/{uuid.UUID(int=7)}"),
    ],
)
def test_a_job_is_found_by_its_key(
    page: TestClient, session: Session, queue: str, typed: str, path: str
) -> None:
    add(session, Email(id=7), Scan(id=uuid.UUID(int=7)))
    add(session, Visit(region="north", number=7), Visit(region="a,b/c~d?", number=7))

    answer = page.get(f"/queues/{queue}", params={"key": typed})

    assert answer.headers["location"] == path
    assert page.get(path).status_code == 200


def test_what_is_not_there_is_a_page_that_says_so(page: TestClient) -> None:
    for path in NOWHERE:
        answer = page.get(path)
        assert (answer.status_code, "<h1>" in answer.text) == (404, True), path


def test_a_job_of_another_queue_of_the_table_is_not_found(
    open_page: Open, session: Session
) -> None:
    add(session, failed(1, recipient="ann"), failed(2, recipient="bo"))
    page = open_page(queues={"of-ann": JobQueue(Email, Email.recipient == "ann")})

    assert keys_shown(page.get("/queues/of-ann")) == ["1"]
    assert page.get("/queues/of-ann/jobs/1").status_code == 200
    assert page.get("/queues/of-ann/jobs/2").status_code == 404
    answer = page.post("/queues/of-ann", data={"verb": "retry", "key": "2", "confirm": "yes"})
    assert "left alone: it is not in this queue any more" in " ".join(texts(answer, "td"))
