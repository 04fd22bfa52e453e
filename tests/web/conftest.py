"""A page over the tables of the models, and visitors who ask it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.testclient import TestClient

from sa_jobqueue.web import Access, Visitor, app
from tests.support import make_engine, with_empty_tables

from .models import QUEUES, ApartBase, Base, Email, Plain

#: What a browser sends with a form of our own page.
OURS = {"Sec-Fetch-Site": "same-origin"}

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

Open = Callable[..., TestClient]


@pytest.fixture(scope="session")
def page_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables of the models, for the whole run."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    ApartBase.metadata.create_all(engine, tables=[Plain.__table__])  # type: ignore[list-item]
    yield engine
    engine.dispose()


@pytest.fixture
def engine(page_engine: Engine) -> Engine:
    """The engine with empty tables."""
    with Session(page_engine) as session, session.begin():
        session.query(Plain).delete()
    return with_empty_tables(page_engine, Base.metadata)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session of the test's own."""
    with Session(engine) as session:
        yield session


@pytest.fixture
def open_page(engine: Engine) -> Open:
    """Open a page as a visitor."""

    def open_page(
        access: Access = Access.ADMIN, *, on: Engine = engine, queues: Any = QUEUES, **client: Any
    ) -> TestClient:
        site = app(on, queues, authorize=lambda _: Visitor("ada", access))
        return TestClient(site, follow_redirects=False, headers=OURS, **client)

    return open_page


@pytest.fixture
def page(open_page: Open) -> TestClient:
    """The page, as an admin sees it."""
    return open_page()


def refuse(_: Request) -> None:
    """Let nobody in."""


def add(session: Session, *jobs: Any) -> None:
    """Commit jobs."""
    session.add_all(jobs)
    session.commit()


def failed(key: int, **values: Any) -> Email:
    """Make an email that has failed; a larger key failed later."""
    moment = LONG_AGO + timedelta(minutes=key)
    return Email(**{"id": key, "status": "failed", "attempts": 5, "owner_date": moment, **values})


def statuses(session: Session) -> dict[int, str]:
    """Return the status of each email as it is committed now."""
    session.rollback()
    return {email.id: email.status for email in session.query(Email).order_by(Email.id)}


def texts(answer: Any, tag: str) -> list[str]:
    """Return the texts of the elements of a tag, without their markup."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", answer.text, re.S)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for text in found]


def preview_of(page: TestClient, path: str, form: dict[str, Any]) -> Any:
    """Press a button, and return the preview that it leads to."""
    answer = page.post(path, data=form, follow_redirects=False)
    assert answer.status_code == 303
    return page.get(answer.headers["location"])


def confirmed(page: TestClient, preview: Any) -> Any:
    """Press the button of a preview, with all that its form holds."""
    (action,) = re.findall(r'<form method="post" action="(.*?)"', preview.text)
    fields = re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', preview.text)
    form: dict[str, list[str]] = {"confirm": ["yes"]}
    for name, value in fields:
        form.setdefault(name, []).append(html.unescape(value))
    return page.post(html.unescape(action), data=form)


def keys_shown(answer: Any) -> list[str]:
    """Return the keys of the jobs that a page lists."""
    return texts(answer, "th")[-answer.text.count('<th scope="row"') :]
