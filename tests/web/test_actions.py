"""What the buttons do: first a preview, then the change, and who was first is told."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import ClaimLost, JobQueue, claim, complete, fence_of, steering
from sa_jobqueue.control import paused, read_control

# Inner: what the library itself lists, to come between.
from sa_jobqueue.counts import list_jobs
from sa_jobqueue.web import actions
from tests.support import SERVERS

from .conftest import (
    Open,
    add,
    confirmed,
    failed,
    keys_shown,
    preview_of,
    statuses,
    texts,
)
from .models import TABLES, Email, Plain, Visit

EMAILS = "/queues/emails"
ALL, CONFIRM = {"all": "retry", "show": "failed"}, {"confirm": "yes"}

#: What verbs do to the jobs 1 (due), 2 (failed), 3 (claimed), 4 (done) and 5 (cancelled).
VERBS = [
    ("retry", {2: "unclaimed", 4: "unclaimed", 5: "unclaimed"}, "3 jobs retried"),
    ("cancel", {1: "cancelled", 3: "cancelled"}, "2 jobs cancelled"),
    ("release", {3: "unclaimed"}, "1 job released"),
    ("stop", {}, "1 job asked to stop"),
    ("reprioritize", {}, "1 job reprioritized"),
    ("prune", {2: None, 4: None, 5: None}, "3 jobs deleted"),
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

    will_be = texts(preview, "td")[2::3]
    assert [text.removesuffix(" by w") for text in texts(preview, "td")[1::3]] == list(
        jobs.values()
    )
    assert (will_be.count("left alone"), told.split(" ", 2)[2] in will_be) == (left_alone, True)
    assert untouched == jobs
    assert texts(result, "h1") == [told]
    assert len([text for text in texts(result, "td") if "left alone" in text]) == left_alone
    now = {**jobs, **changes}
    assert statuses(session) == {key: status for key, status in now.items() if status}
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
    owners = re.findall(r'name="was" value="(.*?)"', preview.text)
    page.post(EMAILS, data={**form, "key": "1", "confirm": "yes"})
    claim(session, Email, owner="w2")
    session.commit()

    answer = page.post(EMAILS, data={**form, "was": owners, "confirm": "yes"})

    assert owners == ["w1", "w1"]
    assert texts(answer, "h1") == ["1 job released"]
    assert "left alone: its status is claimed by w2 now" in texts(answer, "td")
    assert statuses(session) == {1: "claimed", 2: "unclaimed"}


def test_what_fails_after_the_preview_is_not_retried(page: TestClient, session: Session) -> None:
    add(session, failed(1), failed(2))
    preview = preview_of(page, EMAILS, ALL)
    add(session, failed(3, owner_date=datetime.now(UTC) + timedelta(minutes=1)))

    result = confirmed(page, preview)

    assert texts(result, "h1") == ["2 jobs retried"]
    assert "A later one is left alone." in " ".join(texts(preview, "p"))
    assert statuses(session) == {1: "unclaimed", 2: "unclaimed", 3: "failed"}


def test_a_failed_job_that_somebody_has_changed_after_the_preview_is_left_alone(
    page: TestClient, session: Session
) -> None:
    add(session, *(failed(key) for key in range(1, 6)))
    preview = preview_of(page, EMAILS, ALL)
    session.get_one(Email, 1).status = "cancelled"
    failed_again, gone = session.get_one(Email, 2), session.get_one(Email, 3)
    failed_again.owner_date = datetime.now(UTC) + timedelta(minutes=1)
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


def test_failures_are_shown_by_kind_and_one_kind_is_retried(
    page: TestClient, session: Session
) -> None:
    kinds = ["no mailbox at all", "x" * 200, "x" * 130, "no mailbox", "no mailbox\nline 2"]
    add(session, *(failed(key, last_error=kind) for key, kind in enumerate(kinds, 1)))
    first = page.get(EMAILS)
    shown = re.findall(r'error=(.*?)">(.*?)</a></td>\s*<td.*?>(\d)</td>', first.text, re.S)
    listed = page.get(EMAILS, params={"show": "failed", "error": "no mailbox"})

    preview = preview_of(page, EMAILS, {**ALL, "error": "no mailbox"})
    soon = datetime.now(UTC) + timedelta(minutes=1)
    add(session, failed(9, last_error="no mailbox", owner_date=soon))
    result = confirmed(page, preview)

    found = {(text, int(number)) for _, text, number in shown}
    assert found == {("no mailbox", 2), ("no mailbox at all", 1), ("x" * 120, 2)}
    assert keys_shown(listed) == ["5", "4"]
    assert texts(preview, "h1") == ["Retry all 2 jobs?"]
    assert texts(result, "h1") == ["2 jobs retried"]
    assert [key for key, status in statuses(session).items() if status == "unclaimed"] == [4, 5]


def test_many_failed_jobs_are_retried_part_after_part(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST", 2)
    monkeypatch.setattr(steering, "BATCH", 1)
    add(session, *(failed(key) for key in range(1, 6)))
    parts = [confirmed(page, preview_of(page, EMAILS, ALL))]
    add(session, failed(9, owner_date=datetime.now(UTC) + timedelta(minutes=1)))

    while 'id="go-on"' in parts[-1].text:
        parts.append(confirmed(page, parts[-1]))

    assert [texts(part, "h1")[0] for part in parts] == [f"{n} jobs retried" for n in (2, 4, 5)]
    assert '<progress max="5" value="4"' in parts[1].text
    assert statuses(session) == {**dict.fromkeys(range(1, 6), "unclaimed"), 9: "failed"}


@pytest.mark.parametrize(
    ("show", "verb", "changed", "status"),
    [
        ("failed", "prune", {5, 6}, None),
        ("cancelled", "retry", {7}, "unclaimed"),
        ("cancelled", "prune", {7}, None),
        ("claimed", "release", {1, 2}, "unclaimed"),
        ("claimed", "cancel", {1, 2}, "cancelled"),
        ("due", "cancel", {3}, "cancelled"),
        ("later", "cancel", {4}, "cancelled"),
    ],
)
def test_all_jobs_of_a_list_are_changed(
    page: TestClient, session: Session, show: str, verb: str, changed: set[int], status: str | None
) -> None:
    add(session, Email(id=1), Email(id=2))
    claim(session, Email, owner="w", limit=2)
    add(session, Email(id=3), Email(id=4, run_at=datetime.now(UTC) + timedelta(hours=1)))
    add(session, failed(5), failed(6), failed(7, status="cancelled"), failed(8, status="done"))
    before = statuses(session)

    preview = preview_of(page, EMAILS, {"all": verb, "show": show, "key": "8"})
    untouched = statuses(session)
    result = confirmed(page, preview)

    assert texts(preview, "h1")[0].startswith(f"{verb.capitalize()} all {len(changed)} job")
    assert untouched == before
    assert texts(result, "h1")[0].startswith(f"{len(changed)} job")
    now = {**before, **dict.fromkeys(changed, status)}
    assert statuses(session) == {key: word for key, word in now.items() if word}


def test_all_claims_of_an_owner_are_released_but_for_those_of_later(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1), Email(id=2, priority=1), Email(id=3, priority=2))
    claim(session, Email, owner="w1")
    claim(session, Email, owner="w2")
    session.commit()
    form = {"all": "release", "show": "claimed", "owner": "w1"}

    preview = preview_of(page, EMAILS, form)
    claim(session, Email, owner="w1")
    session.commit()
    result = confirmed(page, preview)

    assert "Their owner is w1." in texts(preview, "p")
    assert texts(result, "h1") == ["1 job released"]
    assert statuses(session) == {1: "unclaimed", 2: "claimed", 3: "claimed"}


@pytest.mark.only_on(*SERVERS)  # a file has one writer, who lists in its transaction
def test_a_job_that_is_done_since_it_was_listed_is_left_alone(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, failed(1), failed(2))
    preview = preview_of(page, EMAILS, ALL)

    def list_and_finish_one(*args: Any, **options: Any) -> Any:
        listed = list_jobs(*args, **options)
        monkeypatch.setattr(steering, "list_jobs", list_jobs)
        session.get_one(Email, 1).status = "done"
        session.commit()
        return listed

    monkeypatch.setattr(steering, "list_jobs", list_and_finish_one)
    result = confirmed(page, preview)

    assert texts(result, "h1") == ["1 job retried"]
    assert statuses(session) == {1: "done", 2: "unclaimed"}


def test_in_an_order_of_ones_own_all_jobs_are_cancelled_too(
    open_page: Open, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "BATCH", 2)
    page = open_page(queues={"mine": JobQueue(Email, order_by=Email.body)})
    add(session, *(Email(id=key, body="x") for key in range(1, 6)))

    result = confirmed(page, preview_of(page, "/queues/mine", {"all": "cancel", "show": "due"}))

    assert texts(result, "h1") == ["5 jobs cancelled"]
    assert set(statuses(session).values()) == {"cancelled"}


def test_a_running_job_is_cancelled_and_its_worker_is_asked_to_stop(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1, attempts=2))
    (job,) = claim(session, Email, owner="w")
    fence = fence_of(job)
    session.commit()

    preview = preview_of(page, EMAILS, {"verb": "cancel", "key": "1"})
    result = confirmed(page, preview)

    assert "which is asked to stop it" in texts(preview, "p")[-1]
    assert texts(result, "h1") == ["1 job cancelled"]
    assert statuses(session) == {1: "cancelled"}
    assert read_control(session, [Email], owner="w", tables=TABLES).asks_to_stop(fence)
    with pytest.raises(ClaimLost):
        complete(session, fence)


def test_claimed_jobs_are_listed_by_owner_and_asked_to_stop(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1), Email(id=2, priority=1))
    (job,) = claim(session, Email, owner="w1")
    claim(session, Email, owner="w2")
    session.commit()

    listed = page.get(EMAILS, params={"show": "claimed", "owner": "w1"})
    result = confirmed(page, preview_of(page, EMAILS, {"verb": "stop", "key": "1"}))
    state = read_control(session, [Email], owner="w1", tables=TABLES)

    assert keys_shown(listed) == ["1"]
    assert texts(result, "h1") == ["1 job asked to stop"]
    assert state.asks_to_stop(fence_of(job))


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
        ("emails", {"verb": "release", "key": ["1", "2"], "was": "w", "confirm": "yes"}),
        *(
            ("plain", {"verb": verb, "key": "1", **CONFIRM})
            for verb in ("pause", "retry all", "reprioritize")
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
