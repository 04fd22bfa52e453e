"""Profiling: CPU time by way and by stage; and the price of an insert."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import URL

from benchmarks.enqueue import WAYS, measure
from benchmarks.enqueue import as_markdown as as_table
from benchmarks.profile.__main__ import as_markdown
from benchmarks.profile.measuring import profile
from benchmarks.profile.stages import DRIVER, OURS, RESULT, STAGES, Stopwatch
from benchmarks.profile.variants import VARIANTS


@pytest.fixture
def url(fresh_database: URL) -> str:
    """Give the URL of a new and empty database."""
    return fresh_database.render_as_string(hide_password=False)


def busy(seconds: float = 0.02) -> None:
    """Use the CPU for a while."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_time_is_that_of_the_innermost_stage() -> None:
    watch = Stopwatch()
    inner = watch.wrapped(busy, DRIVER)

    with watch.on(OURS):
        busy()
        inner(0.06)

    assert watch.own[DRIVER] == pytest.approx(0.06, rel=0.2)
    assert watch.own[OURS] == pytest.approx(0.02, rel=0.2)


def test_what_is_called_outside_of_a_measured_call_is_not_counted() -> None:
    watch = Stopwatch()

    watch.wrapped(busy, RESULT)()

    assert not any(watch.own.values())


def test_every_way_and_every_stage_is_profiled(url: str, db_alias: str) -> None:
    found = profile(db_alias, url, batch=3, calls=5, rounds=1)

    assert list(found.variants) == list(VARIANTS)
    assert all(steps.all > 0 for steps in found.variants.values())
    assert [list(stages) for stages in found.stages.values()] == [list(STAGES)] * 2
    assert all(stages[DRIVER] > 0 and stages[OURS] > 0 for stages in found.stages.values())
    assert "| driver alone |" in as_markdown(found)


def test_every_way_to_insert_is_compared_with_its_twin(url: str) -> None:
    found = measure(url, rows=30, rounds=1)

    assert [one.way for one in found] == [way.name for way in WAYS]
    assert [one.ratio for one in found if one.way == one.twin] == [1.0, 1.0]
    assert "| enqueue(Job) |" in as_table(found)
