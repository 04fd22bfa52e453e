"""The page of queues in every style of mapping: other names, other words, several tables, steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.web.rendering import UNKNOWN
from tests.cli import films
from tests.models import (
    Animal,
    Base,
    Cat,
    Document,
    Dog,
    Email,
    Letter,
    Message,
    Order,
    Pair,
    Task,
)
from tests.support import with_empty_tables

from .conftest import Open, add, texts
from .models import Ticket

MAPPINGS: dict[Any, dict[str, Any]] = {
    Email: {"recipient": "ann"},
    Letter: {},
    Task: {"name": "wash"},
    Order: {},
    Message: {"sequence": 1},
    Pair: {"left": 1, "right": "x"},
    Document: {"created": 1},
    Dog: {"trick": "roll"},
    Cat: {},
    Animal: {},
    Ticket: {},
}


@pytest.fixture
def tables(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)
    with_empty_tables(engine, films.Base.metadata)


def act(page: TestClient, queue: str, verb: str, key: str) -> str:
    """Confirm an action on a job; return the title of the answer."""
    form = {"verb": verb, "key": key, "confirm": "yes"}
    return texts(page.post(f"/queues/{queue}", data=form), "h1")[0]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("entity", MAPPINGS, ids=lambda entity: entity.__name__)
def test_a_job_of_any_class_is_shown_and_changed(
    open_page: Open, session: Session, entity: Any
) -> None:
    add(session, entity(**MAPPINGS[entity]))
    page = open_page(queues={"jobs": entity})

    listed = page.get("/queues/jobs?show=due").text
    (key,) = re.findall(r'name="key" value="(.+?)"', listed)
    (job,) = re.findall(r'class="job" href="(.+?)"', listed)

    assert page.get(job).status_code == 200
    assert act(page, "jobs", "cancel", key) == "1 job cancelled"
    assert act(page, "jobs", "cancel", key) == "0 jobs cancelled"
    assert act(page, "jobs", "retry", key) == "1 job retried"
    assert act(page, "jobs", "release", key) == "0 jobs released"


@pytest.mark.usefixtures("tables")
def test_the_steps_of_a_workflow_are_queues(open_page: Open, session: Session) -> None:
    steps = list(films.workflow)
    add(session, films.Film(id=7, title="easy"))
    page = open_page(queues=steps)

    names = texts(page.get("/"), "th")[10:]
    first = page.get(f"/queues/{names[0]}?show=due")

    assert len(names) == len(steps)
    assert any("/" in name for name in names)
    assert {page.get(f"/queues/{name}").status_code for name in names} == {200}
    assert 'value="7"' in first.text
    assert page.get(f"/queues/{names[0]}/jobs/7").status_code == 200


@pytest.mark.usefixtures("tables")
def test_a_step_shows_its_workflow_with_the_jobs_of_each_status(
    open_page: Open, session: Session, db_alias: str
) -> None:
    words = {"unclaimed": 3, "claimed": 2, "cut": 1, "showing": 1, "failed": 1, "done": 1}
    add(session, *(films.Film(title="x", status=it) for it, n in words.items() for _ in range(n)))
    page = open_page(queues={"cut": films.cut, "show": films.show})

    answer = page.get("/queues/show")

    known = (UNKNOWN, UNKNOWN) if db_alias == "postgresql" else ("1", "0")
    assert [line for line in texts(answer, "li") if "→" in line or line.startswith("ends")] == [
        "cut unclaimed 3 → claimed 2 → cut 1",
        f"show cut 1 → showing 1 → done {known[0]}",
        f"ends done {known[0]} failed {known[0]} cancelled {known[1]}",
    ]
    linked = re.findall(r'<a class="state" href="(.+?)"><bdi>(.+?)</bdi>', answer.text)
    assert {word: page.get(address).status_code for address, word in linked} == dict.fromkeys(
        ("unclaimed", "claimed", "cut", "showing", "failed", "cancelled"), 200
    )
    assert ("/queues/cut?show=claimed", "claimed") in linked
    assert 'id="graph"' not in open_page(queues={"mails": Email}).get("/queues/mails").text


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", ["a/b", "a?b#c", "100%", "käse", "a b", "<b>", "jobs"])
def test_a_queue_may_have_any_name(open_page: Open, session: Session, name: str) -> None:
    add(session, Email(id=1, recipient="ann"))
    page = open_page(queues={name: Email})

    (link,) = re.findall(r'<th scope="row" class="text"><a href="(.+?)"', page.get("/").text)
    queue = page.get(link + "?show=due")
    (job,) = re.findall(r'class="job" href="(.+?)"', queue.text)

    assert texts(queue, "h1") == [name]
    assert page.get(job).status_code == 200
