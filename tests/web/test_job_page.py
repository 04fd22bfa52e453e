"""The page of a job tells its whole story."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.testclient import TestClient

from sa_jobqueue import ArgumentError, JobMixin, claim, fail
from sa_jobqueue.events import HistoryTable

# Inner: no page shows each class and each type.
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.otel import TraceMixin
from sa_jobqueue.web.rendering import value_text

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
    job.traceparent, job.body, job.draft, job.owner = parent, "Dear Ann", "a secret", "w"
    add(session, job)

    answer = page.get(JOB)

    assert texts(answer, "h1") == ["Job 1 ann failed"]
    shown = facts(answer)
    days = (datetime.now(UTC) - LONG_AGO).days
    assert {name: shown.pop(name) for name in ("Failed", "Due")} == {
        "Failed": f"{days} d ago, by w 2020-01-01 00:01:00 UTC",
        "Due": f"{days} d ago 2020-01-01 00:00:00 UTC",
    }
    assert shown == {
        "Key (id)": "1",
        "Attempts": "5 of 7",
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


def test_a_text_that_turns_its_line_is_isolated(page: TestClient, session: Session) -> None:
    turned = "\u202etxt"
    add(session, Visit(region=turned, number=1), Email(id=1, recipient=turned))
    claim(session, Email, owner=turned)
    session.commit()
    form = {"verb": "release", "key": "1"}

    listed = page.get("/queues/visits?show=due").text
    visit = page.get(f"/queues/visits/jobs/{turned},1").text
    email = page.get(JOB).text
    preview = preview_of(page, "/queues/emails", form).text

    assert f"<bdi>{turned},1</bdi></a>" in listed
    assert f"<h1>Job <bdi>{turned},1</bdi>" in visit
    assert f'<bdi class="what">{turned}</bdi>' in email
    assert f"claimed by <bdi>{turned}</bdi>" in preview


@pytest.mark.usefixtures("history")
def test_the_history_of_a_job_that_is_deleted_is_shown(page: TestClient, session: Session) -> None:
    add(session, Email(id=1))
    session.delete(session.get_one(Email, 1))
    session.commit()

    answer, never = page.get(JOB), page.get("/queues/emails/jobs/2")

    assert (texts(answer, "h1"), texts(answer, "td")[1]) == (["Job 1 deleted"], "flush")
    assert never.status_code == 404


def test_a_value_of_json_is_indented() -> None:
    assert value_text({"to": ["ann", "bö"]}) == '{\n  "to": [\n    "ann",\n    "bö"\n  ]\n}'


@pytest.mark.parametrize(
    ("options", "shown"), [({}, "ann · mail"), ({"web_columns": "kind"}, "mail")]
)
def test_lists_show_the_columns_that_tell_people_which_job_it_is(
    options: dict[str, Any], shown: str
) -> None:
    class Base(DeclarativeBase):
        pass

    class Letter(JobMixin, TraceMixin, Base):
        __tablename__ = "letter"
        __queue_args__ = options
        id: Mapped[int] = mapped_column(primary_key=True)
        recipient: Mapped[str] = mapped_column(String(50))
        body: Mapped[str] = mapped_column(Text)
        kind: Mapped[str] = mapped_column(String(50))
        third: Mapped[str] = mapped_column(String(50))

    values = {"recipient": "ann", "kind": "mail", "body": "Dear", "third": "no"}
    assert mapping_of(Letter).shown_text(values) == shown


def test_a_column_that_the_class_lacks_is_refused() -> None:
    class Base(DeclarativeBase):
        pass

    with pytest.raises(ArgumentError, match="'web_columns'] names 'nobody'"):

        class Letter(JobMixin, Base):
            __tablename__ = "letter"
            __queue_args__ = {"web_columns": ["nobody"]}  # noqa: RUF012 - as users write it
            id: Mapped[int] = mapped_column(primary_key=True)


def test_a_job_without_a_history_says_how_to_get_one(page: TestClient, session: Session) -> None:
    add(session, Plain(id=1), Email(id=1))

    without, unknown = page.get("/queues/plain/jobs/1"), page.get(JOB)

    assert "history_table(Base.metadata)" in without.text
    assert "The history has no record of this job." in texts(unknown, "p")


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        ("unclaimed", ["Reprioritize…", "Cancel…"]),
        ("claimed", ["Cancel…", "Stop…", "Release…"]),
        ("failed", ["Retry…", "Prune…"]),
        ("done", ["Retry…", "Prune…"]),
        ("cancelled", ["Retry…", "Prune…"]),
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
        *(
            "a\nb",
            "a\r\nb",
            "\r",
            "100%0A",
            "\u202etxt",
            "a,b",
            "\\",
            "//evil.example",
            "'\"<b>&amp;",
        ),
    ],
)
def test_a_job_with_any_key_is_found_and_changed(
    page: TestClient, session: Session, region: str
) -> None:
    add(session, Visit(region=region, number=1))
    listed = page.get("/queues/visits?show=due").text
    (link,) = re.findall(r'class="job" href="(.*?)"', listed)
    (key,) = re.findall(r'type="checkbox" name="key" value="(.*?)"', listed, re.S)
    sent = re.sub("\r\n|\r|\n", "\r\n", html.unescape(key))  # as a browser sends a field
    form = {"verb": "cancel", "key": sent}

    job = page.get(html.unescape(link))
    preview = preview_of(page, "/queues/visits", form)
    result = confirmed(page, preview)

    assert job.status_code == 200
    assert texts(preview, "h1") == ["Cancel 1 job?"]
    assert texts(result, "h1") == ["1 job cancelled"]
