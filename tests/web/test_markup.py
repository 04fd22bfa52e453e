"""The markup of every page: well-formed, and readable for a keyboard and a screen reader."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim
from sa_jobqueue.control import register_worker
from tests.support import until

from .conftest import Open, add, failed
from .models import SCHEDULES, TABLES, Email, absent, emails, plain

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: Elements without an end.
VOID = {"input", "link", "meta", "polygon", "polyline"}

EMAILS = "/queues/emails"
GETS = [
    "/",
    *(f"{EMAILS}?show={show}" for show in ("failed", "claimed", "due", "later", "cancelled")),
    *(f"{EMAILS}/jobs/{key}" for key in (1, 2, 3)),
    *("/queues/plain", "/queues/absent", "/workers", "/schedules", "/doctor", "/nowhere"),
]
FORMS: list[dict[str, Any]] = [
    {"verb": "retry", "key": ["2", "1"]},
    {"verb": "reprioritize", "key": "1", "priority": "7"},
    {"verb": "release", "key": "3"},
    {"verb": "retry", "key": ["2", "1"], "confirm": "yes"},
    {"verb": "retry_failed"},
    {"verb": "retry_failed", "confirm": "yes", "until": "2030-01-01", "count": "9"},
    {"verb": "retry"},
]


class Markup(HTMLParser):
    """A page's elements with their attributes, and what is wrong with their ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element with one of these tags."""
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture
def page(open_page: Open, session: Session, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A page with something of everything."""
    add(session, Email(id=3))
    claim(session, Email, owner="w")
    add(
        session,
        Email(id=1),
        failed(2, last_error="no luck"),
        failed(5),
        failed(4, status="cancelled"),
    )
    SCHEDULES.add(session, "morning", emails, "0 7 * * *")
    register_worker(session, "w", [emails], tables=TABLES)
    session.commit()
    made = open_page(queues={"emails": emails, "plain": plain, "absent": absent})
    monkeypatch.setattr("sa_jobqueue.web.samples.EVERY", timedelta(milliseconds=20))
    until(lambda: "<svg" in made.get("/").text)
    return made


def check(text: str) -> None:
    """Check the promises that hold for every page."""
    markup = Markup(text)
    ids = Counter(attributes["id"] for _, attributes in markup.elements if "id" in attributes)
    labels = {attributes["for"] for attributes in markup.of("label")}
    fields = [each for each in markup.of("input", "select") if each.get("type") != "hidden"]
    assert markup.wrong == []
    assert [name for name, count in ids.items() if count > 1] == []
    assert markup.of("html")[0]["lang"] == "en"
    assert len(markup.of("h1")) == len(markup.of("main")) == 1
    assert {"class": "skip", "href": "#main"} in markup.of("a")
    assert all("scope" in header for header in markup.of("th"))
    assert all("aria-label" in field or field["id"] in labels for field in fields)
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in markup.of("svg"))
    assert all(len(markup.of("nav")) < 2 or "aria-label" in each for each in markup.of("nav"))


@pytest.mark.parametrize("path", GETS)
def test_a_page_is_well_formed_and_labels_everything(page: TestClient, path: str) -> None:
    check(page.get(path).text)


def posted(page: TestClient, path: str, form: dict[str, Any]) -> Any:
    """Send a form, and follow to where it leads."""
    return page.post(path, data=form, follow_redirects=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_the_answer_to_a_form_is_well_formed_and_labels_everything(
    page: TestClient, form: dict[str, Any]
) -> None:
    check(posted(page, EMAILS, form).text)


def test_the_preview_of_a_schedule_is_well_formed(page: TestClient) -> None:
    check(posted(page, "/schedules", {"verb": "run", "name": "morning"}).text)
