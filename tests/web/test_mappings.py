"""The page of queues in every style of mapping: other names, other words, several tables, steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

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
    (job,) = re.findall(r'id="job-1" href="(.+?)"', listed)

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
@pytest.mark.parametrize("name", ["a/b", "a?b#c", "100%", "käse", "a b", "<b>", "jobs"])
def test_a_queue_may_have_any_name(open_page: Open, session: Session, name: str) -> None:
    add(session, Email(id=1, recipient="ann"))
    page = open_page(queues={name: Email})

    (link,) = re.findall(r'id="queue-1" href="(.+?)"', page.get("/").text)
    queue = page.get(link + "?show=due")
    (job,) = re.findall(r'id="job-1" href="(.+?)"', queue.text)

    assert texts(queue, "h1") == [name]
    assert page.get(job).status_code == 200
