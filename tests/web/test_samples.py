"""Each look at a queue is a sample of it, unless the last one is too young; plots draw them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.web import site  # Inner: its time between two samples is shortened.

from .conftest import add
from .models import Email


def line_of(page: TestClient) -> list[str]:
    """Return the points of the plot of due emails, the oldest first."""
    found = re.search(r'<polyline points="([^"]*)"', page.get("/queues/emails").text)
    return found[1].split() if found else []


def test_each_look_is_a_sample_unless_the_last_one_is_too_young(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, Email(id=1))
    young = [len(line_of(page)) for _ in range(3)]
    monkeypatch.setattr(site, "EVERY", timedelta(0))

    page.get("/")
    old_enough = [len(line_of(page)) for _ in range(2)]

    assert young == [0, 0, 0]
    assert old_enough == [3, 4]


def test_a_sample_is_shown_for_half_an_hour(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, Email(id=1))
    monkeypatch.setattr(site, "EVERY", timedelta(0))
    before = [len(line_of(page)) for _ in range(2)]
    monkeypatch.setattr(site, "SHOWN", timedelta(0))

    assert before == [0, 2]
    assert line_of(page) == []
