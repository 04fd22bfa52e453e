"""Samples are taken while somebody looks, and no longer; plots draw them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.web import site
from tests.support import until

from .conftest import add
from .models import Email


def line_of(page: TestClient) -> list[str]:
    """Return the points of the plot of due emails, the oldest first."""
    found = re.search(r'<polyline points="([^"]*)"', page.get("/queues/emails").text)
    return found[1].split() if found else []


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are taken every hundredth of a second, for a fifth of a second after a look."""
    monkeypatch.setattr(site, "EVERY", timedelta(milliseconds=10))
    monkeypatch.setattr(site, "WATCHED", timedelta(milliseconds=200))


@pytest.mark.usefixtures("often")
def test_samples_are_taken_while_somebody_looks_and_no_longer(
    page: TestClient, session: Session
) -> None:
    add(session, Email(id=1))
    until(lambda: len(line_of(page)) > 3)
    taken = page.app.state.site.samples  # type: ignore[attr-defined]  # it is a Starlette

    until(lambda: taken._thread is None)  # nobody looks
    before = len(taken.of("emails"))

    until(lambda: len(line_of(page)) > before + 2)  # somebody looks again
