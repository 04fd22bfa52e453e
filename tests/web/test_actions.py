"""What the buttons do: first a preview, then the change, and who was first is told."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim, complete
from sa_jobqueue.control import paused

from .conftest import LONG_AGO, add, confirmed, failed, preview_of, statuses, texts
from .models import TABLES, Email, Plain, Visit

EMAILS = "/queues/emails"
ALL, CONFIRM = {"verb": "retry_failed"}, {"confirm": "yes"}

#: What verbs do to the jobs 1 (due), 2 (failed), 3 (claimed), 4 (done) and 5 (cancelled).
VERBS = [
    ("retry", {2: "unclaimed", 4: "unclaimed", 5: "unclaimed"}, "3 jobs retried"),
    ("cancel", {1: "cancelled"}, "1 job cancelled"),
    ("release", {3: "unclaimed"}, "1 job released"),
    ("reprioritize", {}, "1 job reprioritized"),
]


@pytest.fixture
def jobs(session: Session) -> dict[int, str]:
    """A job of each status."""
    add(session, Email(id=3), failed(2), failed(4, status="done"), failed(5, status="cancelled"))
    claim(session, Email, owner="w")
    add(session, Email(id=1))
    return statuses(session)


@pytest.mark.parametrize(("verb", "changes", "told"), VERBS)
def test_a_preview_says_what_the_confirmed_action_does(
    page: TestClient, session: Session, jobs: dict[int, str], verb: str, changes: Any, told: str
) -> None:
    left_alone = 5 - int(told[0])
    form = {"verb": verb, "key": list("12345"), "priority": "7"}

    preview = preview_of(page, EMAILS, form)
    untouched = statuses(session)
    result = page.post(EMAILS, data={**form, "confirm": "yes"})

    will_be = texts(preview, "td")[1::2]
    assert [text.removesuffix(" by w") for text in texts(preview, "td")[0::2]] == list(
        jobs.values()
    )
    assert (will_be.count("left alone"), told.split()[-1] in will_be) == (left_alone, True)
    assert untouched == jobs
    assert texts(result, "h1") == [told]
    assert len([text for text in texts(result, "td") if "left alone" in text]) == left_alone
    assert statuses(session) == {**jobs, **changes}
    if verb == "reprioritize":
        assert session.get_one(Email, 1).priority == 7


def test_a_job_that_is_done_since_the_preview_is_not_run_again(
    page: TestClient, session: Session
) -> None:
    add(session, failed(1), failed(2))
    preview = preview_of(page, EMAILS, {"verb": "retry", "key": ["1", "2"]})
    page.post(EMAILS, data={"verb": "retry", "key": "1", "confirm": "yes"})
    complete(session, claim(session, Email, owner="w"))
    session.commit()

    answer = confirmed(page, preview)

    assert texts(answer, "h1") == ["1 job retried"]
    assert "left alone: its status is done now" in texts(answer, "td")
    assert statuses(session) == {1: "done", 2: "unclaimed"}


def test_a_claim_that_somebody_else_has_since_the_preview_is_not_released(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1), Email(id=2))
    claim(session, Email, owner="w1", limit=2)
    session.commit()
    form = {"verb": "release", "key": ["1", "2"]}
    preview = preview_of(page, EMAILS, form)
    owners = re.findall(r'name="owner" value="(.*?)"', preview.text)
    page.post(EMAILS, data={**form, "key": "1", "confirm": "yes"})
    claim(session, Email, owner="w2")
    session.commit()

    answer = page.post(EMAILS, data={**form, "owner": owners, "confirm": "yes"})

    assert owners == ["w1", "w1"]
    assert texts(answer, "h1") == ["1 job released"]
    assert "left alone: its status is claimed by w2 now" in texts(answer, "td")
    assert statuses(session) == {1: "claimed", 2: "unclaimed"}


def test_what_fails_after_the_preview_is_not_retried(page: TestClient, session: Session) -> None:
    add(session, failed(1), failed(2))
    preview = preview_of(page, EMAILS, ALL)
    add(session, failed(3))

    result = confirmed(page, preview)

    assert texts(result, "h1") == ["2 jobs retried"]
    assert "Jobs that failed after 2020-01-01 00:02:00 UTC were left alone." in texts(result, "p")
    assert statuses(session) == {1: "unclaimed", 2: "unclaimed", 3: "failed"}


def test_a_failed_job_that_somebody_has_changed_after_the_preview_is_left_alone(
    page: TestClient, session: Session
) -> None:
    add(session, *(failed(key) for key in range(1, 6)))
    preview = preview_of(page, EMAILS, ALL)
    session.get_one(Email, 1).status = "cancelled"
    failed_again, gone = session.get_one(Email, 2), session.get_one(Email, 3)
    failed_again.owner_date = LONG_AGO + timedelta(days=1)
    session.delete(gone)
    session.commit()

    result = confirmed(page, preview)

    assert texts(result, "h1") == ["2 jobs retried"]
    left = "3 jobs of the preview left alone: somebody else, or a worker, was first."
    assert left in texts(result, "p")
    assert statuses(session) == {1: "cancelled", 2: "failed", 4: "unclaimed", 5: "unclaimed"}


@pytest.mark.parametrize("until", ["", "yesterday", "0001-01-01T00:00:00+23:00"])
def test_all_failed_jobs_are_retried_only_by_the_form_of_a_preview(
    page: TestClient, session: Session, until: str
) -> None:
    add(session, failed(1))

    answer = page.post(EMAILS, data={**ALL, "confirm": "yes", "until": until, "count": "x"})

    assert answer.status_code == 400
    assert statuses(session) == {1: "failed"}


def test_a_queue_is_paused_and_resumed(page: TestClient, session: Session) -> None:
    answer = page.post(EMAILS, data={"verb": "pause"})

    assert (answer.status_code, answer.headers["location"]) == (303, EMAILS)
    assert [each.queue for each in paused(session, tables=TABLES)] == ["page_email"]
    assert "Resume" in texts(page.get(EMAILS), "button")

    page.post(EMAILS, data={"verb": "resume"})
    session.rollback()
    assert paused(session, tables=TABLES) == []


@pytest.mark.parametrize(
    ("queue", "form"),
    [
        ("emails", {"verb": "retry"}),
        ("emails", {"verb": "retry", "key": "x"}),
        ("emails", {"verb": "retry", "key": "1,2"}),
        ("emails", {"verb": "delete", "key": "1"}),
        ("emails", {"key": "1"}),
        ("emails", {"verb": "reprioritize", "key": "1", "priority": "high"}),
        ("emails", {"verb": "reprioritize", "key": "1", "priority": "40000"}),
        ("emails", {"verb": "retry", "key": [str(key) for key in range(501)]}),
        ("emails", {"verb": "release", "key": ["1", "2"], "owner": "w", "confirm": "yes"}),
        *(
            ("plain", {"verb": verb, "key": "1", **CONFIRM})
            for verb in ("pause", "retry_failed", "reprioritize")
        ),
    ],
)
def test_what_makes_no_sense_or_a_queue_cannot_do_changes_nothing(
    page: TestClient, session: Session, queue: str, form: Any
) -> None:
    add(session, failed(1), Plain(id=1))

    answers = [page.post(f"/queues/{queue}", data={**form, **more}) for more in ({}, CONFIRM)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert queue == "emails" or texts(answers[1], "h1") == ["Nothing was done"]
    assert statuses(session) == {1: "failed"}


def test_every_action_is_logged_with_who_did_it(
    page: TestClient, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\nINFO forged"
    add(session, failed(1), failed(2), failed(3), Visit(region=forged, number=1))

    with caplog.at_level(logging.INFO, "sa_jobqueue.web"):
        page.post("/queues/visits", data={"verb": "cancel", "key": f"{forged},1", **CONFIRM})
        page.post(EMAILS, data={"verb": "retry", "key": ["1", "9"]})
        page.post(EMAILS, data={"verb": "retry", "key": ["1", "9"], "confirm": "yes"})
        confirmed(page, preview_of(page, EMAILS, ALL))
        page.post(EMAILS, data={"verb": "pause"})

    noted = [vars(record) for record in caplog.records if record.name == "sa_jobqueue.web"]
    told = [
        (each["visitor"], each["verb"], each["queue"], each["keys"], each["changed"])
        for each in noted
    ]
    assert "\n" not in "".join(map(logging.LogRecord.getMessage, caplog.records))
    assert told == [
        ("ada", "cancel", "visits", [[forged, 1]], 1),
        ("ada", "retry", "emails", [[1], [9]], 1),
        ("ada", "retry", "emails", [[2], [3]], 2),
        ("ada", "pause", "emails", [], 1),
    ]
