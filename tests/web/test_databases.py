"""A page over several databases: each has its pages, and the first page shows all of them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import ArgumentError
from sa_jobqueue.control import pause
from sa_jobqueue.web import Access, Visitor, app, pages
from sa_jobqueue.web.door import AT_ONCE
from tests.support import make_engine

from .conftest import Open, add, confirmed, failed, preview_of, statuses, texts
from .models import SCHEDULES, TABLES, Base, Email, emails, visits

QUEUES = {"emails": emails, "visits": visits}


@pytest.fixture
def other(fresh_database: URL) -> Iterator[Engine]:
    """A second database, with the tables of the models."""
    engine = make_engine(fresh_database, poolclass=NullPool)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def both(open_page: Open, engine: Engine, other: Engine) -> TestClient:
    """The page of two databases."""
    return open_page(on={"eu": engine, "us west": other}, queues=QUEUES)


def rows(answer: Any) -> list[tuple[str, str]]:
    """Return the queue and the database of each line of the first page."""
    found = re.findall(r'<tr data-row="(.+?)">', answer.text)
    return [tuple(text.split(" / ")) for text in found]


def test_the_first_page_shows_the_queues_of_all_databases(
    both: TestClient, session: Session, other: Engine
) -> None:
    add(session, Email(id=1), Email(id=2, recipient="bo"))
    with Session(other) as elsewhere:
        add(elsewhere, failed(7))
        pause(elsewhere, visits, tables=TABLES)
        SCHEDULES.add(elsewhere, "morning", emails, "0 7 * * *")
        morning = elsewhere.get_one(SCHEDULES.entity, "morning")
        morning.next_tick -= timedelta(days=2)
        elsewhere.commit()

    answer = both.get("/")

    assert sorted(rows(answer)) == [
        (database, name) for database in ("eu", "us west") for name in QUEUES
    ]
    assert set(rows(answer)[:3]) >= {("us west", "emails"), ("us west", "visits")}
    told = [text for text in texts(answer, "li") if ":" in text]
    assert set(told) == {
        "eu / emails: no worker",
        "us west / emails: 1 failed",
        "us west / visits: paused",
        "us west / Schedules: morning overdue",
    }
    links = re.findall(r'href="(/[^"]*\?show=due)"', answer.text)
    assert {both.get(link).status_code for link in links} == {200}
    assert "/us%20west/queues/emails?show=due" in links


def test_the_pages_of_a_database_show_and_change_it_alone(
    both: TestClient, session: Session, other: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    add(session, failed(1))
    with Session(other) as elsewhere:
        add(elsewhere, failed(1), failed(2))

    own = both.get("/us%20west/")
    with caplog.at_level(logging.INFO, "sa_jobqueue.web"):
        form = {"verb": "retry", "key": ["1", "2"]}
        result = confirmed(both, preview_of(both, "/us%20west/queues/emails", form))

    assert rows(own) == [("us west", "emails"), ("us west", "visits")]
    assert "All databases / us west: " in texts(own, "p")[0]
    assert texts(own, "li")[:4] == ["Queues", "Workers", "Schedules", "Doctor"]
    assert texts(result, "h1") == ["2 jobs retried"]
    assert statuses(session) == {1: "failed"}
    assert "us west/emails" in caplog.text
    for path in ("workers", "schedules", "doctor", "queues/emails/jobs/1", "static/style.css"):
        assert both.get(f"/us%20west/{path}").status_code == 200, path
    assert (texts(both.get("/"), "p")[0], texts(both.get("/"), "nav")) == (
        "2 databases",
        ["Queues"],
    )
    assert 'href="/us%20west/queues/emails' not in both.get("/eu/queues/emails").text


def test_a_database_that_is_away_or_silent_is_a_line(
    open_page: Open, engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TIME_LIMIT", timedelta(seconds=1))
    silent, asked, ends = threading.Event(), [], threading.Event()

    @event.listens_for(other, "do_connect")
    def connect(*_: object) -> None:
        if silent.is_set():
            asked.append(1)
            ends.wait(20)
        raise OperationalError("connect", None, Exception("away"))

    page = open_page(on={"eu": engine, "us": other}, queues=QUEUES)
    away = page.get("/")
    silent.set()
    looks = [page.get("/") for _ in range(3)]
    ends.set()
    event.remove(other, "do_connect", connect)

    for answer in (away, *looks):
        assert answer.status_code == 200
        assert rows(answer) == [("eu", "emails"), ("eu", "visits")]
        assert re.findall('data-trouble="(.+?)"', answer.text) == ["us"]
    assert "us cannot be read: The database does not answer." in texts(looks[0], "p")
    assert len(asked) == 1
    assert page.get("/eu/queues/emails").status_code == 200


def test_a_silent_database_holds_up_the_pages_of_no_other(
    engine: Engine, other: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    asked, ends = threading.Semaphore(0), threading.Event()

    @event.listens_for(other, "do_connect")
    def connect(*_: object) -> None:
        asked.release()
        ends.wait(20)
        raise OperationalError("connect", None, Exception("away"))

    engines = {"eu": engine, "us": other}
    page = app(engines, QUEUES, authorize=lambda _: Visitor("ada", Access.READ))
    with TestClient(page) as client, ThreadPoolExecutor(AT_ONCE) as tabs:
        hanging = [tabs.submit(client.get, "/us/queues/emails") for _ in range(AT_ONCE)]
        for _ in hanging:
            asked.acquire()
        found = [client.get(path).status_code for path in ("/eu/queues/emails", "/us/workers")]
        ends.set()
    event.remove(other, "do_connect", connect)

    assert found == [200, 503]
    assert {each.result().status_code for each in hanging} == {503}
    assert "us: The database does not answer: Exception: away" in caplog.messages


@pytest.mark.parametrize(
    "path", ["/workers", "/queues/emails", "/asia/", "/asia/queues/emails", "/eu", "/us/nothing"]
)
def test_what_no_database_has_is_not_found(open_page: Open, engine: Engine, path: str) -> None:
    answer = open_page(on={"eu": engine, "us": engine}, queues=QUEUES).get(path)

    assert (answer.status_code, 'href="/"' in answer.text) == (404, True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "static"])
def test_a_name_that_makes_no_address_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(ArgumentError, match="name the database otherwise"):
        app({name: engine, "eu": engine}, QUEUES, authorize=lambda _: None)
    with pytest.raises(ArgumentError, match="needs an Engine"):
        app({}, QUEUES, authorize=lambda _: None)
