"""The page beneath a path of another application: every link stays beneath it."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from sa_jobqueue.web import Access, Visitor, app

from .conftest import OURS, add, failed
from .models import QUEUES, Email

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

PATHS = ["/", "/queues/emails", "/queues/emails?show=due", "/queues/emails/jobs/1"]
PATHS += ["/workers", "/schedules", "/doctor", "/nowhere"]


def authorize(_: Any) -> Visitor:
    return Visitor("ada", Access.ADMIN)


@pytest.fixture(params=["mounted", "behind a proxy"])
def mounted(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """A client of the page, and the path where it is."""
    page = app(engine, QUEUES, authorize=authorize)
    options: dict[str, Any] = {"headers": OURS, "follow_redirects": False}
    if request.param == "mounted":
        outer = Starlette(routes=[Mount("/admin", routes=[Mount("/jobs", page)])])
        yield TestClient(outer, **options), "/admin/jobs"
    else:
        yield TestClient(page, root_path="/shop/jobs", **options), "/shop/jobs"
    page.state.site.samples.stop()


def test_every_link_stays_beneath_the_path_and_leads_to_a_page(
    mounted: Any, session: Session
) -> None:
    client, root = mounted
    add(session, failed(1), Email(id=2))
    found: set[str] = set()

    for path in PATHS:
        answer = client.get(root + path)
        assert answer.status_code == (404 if path == "/nowhere" else 200)
        there = re.findall(r'(?:href|src|action)="([^"]*)"', answer.text)
        assert not [link for link in there if not link.startswith((f"{root}/", "?", "#"))], path
        found |= {link for link in there if "/previews/" not in link and link.startswith("/")}
    asked = client.get(f"{root}/queues/emails?key=1").headers["location"]
    paused = client.post(f"{root}/queues/emails", data={"verb": "pause"}).headers["location"]

    assert {client.get(html.unescape(link)).status_code for link in found} == {200}
    assert f"{root}/queues/emails" in found
    assert asked == f"{root}/queues/emails/jobs/1"
    assert paused == f"{root}/queues/emails"
