"""The page of a job tells its whole story."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim, fail
from sa_jobqueue.events import HistoryTable

from .conftest import LONG_AGO, add, confirmed, failed, preview_of, texts
from .models import HISTORY, Email, Plain, Visit

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
JOB = "/queues/emails/jobs/1"


@pytest.fixture
def history() -> Iterator[None]:
    """Record what is done to emails."""
    recorder = HistoryTable(HISTORY).listen(Email)
    yield
    recorder.remove(Email)


def facts(answer: Any) -> dict[str, str]:
    """Return the facts of a page by their names."""
    return dict(zip(texts(answer, "dt"), texts(answer, "dd"), strict=True))


def test_a_job_shows_all_that_its_row_tells(page: TestClient, session: Session) -> None:
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    job = failed(1, last_error="no luck\nline 2", priority=-3, run_at=LONG_AGO, max_attempts=7)
    job.traceparent, job.body, job.draft = parent, "Dear Ann", "a secret"
    add(session, job)

    answer = page.get(JOB)

    assert texts(answer, "h1") == ["Job 1 failed"]
    assert facts(answer) == {
        "Key (id)": "1",
        "Owner": "nobody",
        "Since (owner_date, UTC)": "2020-01-01 00:01:00",
        "Attempts": "5 of 7",
        "Due at (run_at, UTC)": "2020-01-01 00:00:00",
        "Priority": "-3",
        "Serial key recipient": "ann",
        "Trace": TRACE,
        "recipient": "ann",
        "body": "Dear Ann",
        "traceparent": parent,
        "draft": "deferred, not read",
    }
    assert "no luck\nline 2</pre>" in answer.text
    assert "a secret" not in answer.text


@pytest.mark.usefixtures("history")
def test_a_job_shows_what_the_history_knows_of_it(page: TestClient, session: Session) -> None:
    add(session, Email(id=1), Email(id=2))
    (job,) = claim(session, Email, Email.id == 1, owner="w")
    fail(session, job, error="no luck")
    session.commit()

    answer = page.get(JOB)

    verbs = texts(answer, "td")[1::6]
    assert verbs == ["fail", "claim", "flush"]
    assert "no luck" in texts(answer, "td")


def test_a_job_without_a_history_says_how_to_get_one(page: TestClient, session: Session) -> None:
    add(session, Plain(id=1), Email(id=1))

    without, unknown = page.get("/queues/plain/jobs/1"), page.get(JOB)

    assert "history_table(Base.metadata)" in without.text
    assert "The history has no record of this job." in texts(unknown, "p")


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        ("unclaimed", ["Reprioritize…", "Cancel…"]),
        ("claimed", ["Release…"]),
        ("failed", ["Retry…"]),
        ("done", ["Retry…"]),
        ("cancelled", ["Retry…"]),
        ("odd", []),
    ],
)
def test_a_job_has_the_buttons_of_its_status(
    page: TestClient, session: Session, status: str, verbs: list[str]
) -> None:
    add(session, failed(1, status=status))

    assert texts(page.get(JOB), "button") == verbs


@pytest.mark.parametrize(
    "region",
    [
        *("a/b", "..", ".", " lead", "trail ", " ", "~1", "%2F", "?x=1", "#h", "a\tb"),
        *("\u202etxt", "a,b", "\\", "//evil.example", "'\"<b>&amp;"),
    ],
)
def test_a_job_with_any_key_is_found_and_changed(
    page: TestClient, session: Session, region: str
) -> None:
    add(session, Visit(region=region, number=1))
    listed = page.get("/queues/visits?show=due").text
    (link,) = re.findall(r'id="job-1" href="(.*?)"', listed)
    (key,) = re.findall(r'type="checkbox" name="key" value="(.*?)"', listed, re.S)
    form = {"verb": "cancel", "key": html.unescape(key)}

    job = page.get(html.unescape(link))
    preview = preview_of(page, "/queues/visits", form)
    result = confirmed(page, preview)

    assert job.status_code == 200
    assert texts(preview, "h1") == ["Cancel 1 job?"]
    assert texts(result, "h1") == ["1 job cancelled"]
