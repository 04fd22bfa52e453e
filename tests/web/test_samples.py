"""Samples are taken while somebody looks, and no longer; plots draw them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.overview import Count, QueueOverview
from sa_jobqueue.web.plots import plot
from sa_jobqueue.web.samples import KEPT, Sample, Samples
from tests.support import until

from .conftest import add
from .models import Email

TICK = timedelta(milliseconds=10)


def seen(due: int) -> dict[str, QueueOverview]:
    nothing: dict[str, Any] = dict.fromkeys(QueueOverview.__annotations__)
    return {"q": QueueOverview(**{**nothing, "name": "q", "due": Count(due)})}


@pytest.fixture
def reads() -> list[threading.Thread]:
    """The threads that have read the queues."""
    return []


@pytest.fixture
def samples(reads: list[threading.Thread]) -> Iterator[Samples]:
    def read() -> dict[str, QueueOverview]:
        reads.append(threading.current_thread())
        return seen(len(reads))

    taken = Samples(read, every=TICK, watched=TICK * 20)
    yield taken
    taken.stop()


def test_nothing_is_read_before_somebody_looks(samples: Samples) -> None:
    assert not samples.running
    assert samples.of("q") == ()


def test_samples_are_taken_after_a_look_until_nobody_has_looked_for_a_while(
    samples: Samples, reads: list[threading.Thread]
) -> None:
    samples.look(seen(100))
    until(lambda: len(samples.of("q")) > 3)
    until(lambda: not samples.running)

    assert samples.of("q")[0] == Sample(100, 0.0)
    assert threading.current_thread() not in reads
    assert not reads[0].is_alive() or not samples.running


def test_samples_go_on_when_somebody_looks_again(samples: Samples) -> None:
    samples.look(seen(1))
    until(lambda: not samples.running)
    before = len(samples.of("q"))

    samples.look(seen(2))

    until(lambda: len(samples.of("q")) > before + 2)


def test_a_page_that_reads_often_adds_no_more_samples_than_the_thread() -> None:
    samples = Samples(lambda: seen(1), every=timedelta(minutes=1))

    for due in range(10):
        samples.look(seen(due))
    samples.stop()

    assert samples.of("q") == (Sample(0, 0.0),)


def test_a_database_that_is_away_ends_no_samples(reads: list[threading.Thread]) -> None:
    def read() -> dict[str, QueueOverview]:
        reads.append(threading.current_thread())
        if len(reads) < 3:
            raise OSError("away")
        return seen(7)

    samples = Samples(read, every=TICK, watched=timedelta(seconds=30))
    samples.look(seen(1))
    until(lambda: Sample(7, 0.0) in samples.of("q"))
    samples.stop()


def test_the_oldest_samples_are_forgotten(samples: Samples, monkeypatch: Any) -> None:
    moments = iter(range(10**9))
    monkeypatch.setattr("sa_jobqueue.web.samples.time.monotonic", lambda: next(moments))

    for due in range(KEPT + 5):
        samples._add(seen(due))

    assert len(samples.of("q")) == KEPT
    assert samples.of("q")[0].due == 5


def test_a_plot_is_a_line_from_left_to_right_within_its_box() -> None:
    made = plot([0, 5, 10], width=100, height=22)

    assert made is not None
    assert made.line == "0.0,21.0 50.0,11.0 100.0,1.0"
    assert (made.most, made.last) == (10, 10)
    assert plot([1]) is None
    assert plot([0, 0], width=10, height=10).line == "0.0,9.0 10.0,9.0"  # type: ignore[union-attr]


def test_who_looks_at_a_single_queue_has_samples_taken_too(page: TestClient) -> None:
    samples = page.app.state.site.samples  # type: ignore[attr-defined]  # it is a Starlette

    page.get("/queues/emails")

    assert samples.running
    assert samples.of("visits") == ()


def test_pages_draw_the_samples(page: TestClient, session: Session) -> None:
    add(session, Email(id=1))
    samples = page.app.state.site.samples  # type: ignore[attr-defined]
    for due in (3, 5):
        samples._taken = -1e9
        samples._add({"emails": seen(due)["q"]})

    first, own = page.get("/").text, page.get("/queues/emails").text

    assert first.count("<svg") == 2
    assert own.count("<svg") == 2
    assert 'aria-label="due jobs of the last half hour"' in own
