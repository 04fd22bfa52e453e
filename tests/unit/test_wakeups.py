"""The pauses of wake-ups, by a clock of the test."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

# Inner: the figures of docs/internals/wake-ups.md are too short to be measured.
from sa_jobqueue.wakeups import watcher
from sa_jobqueue.wakeups.watcher import Alarm, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a clock that the test sets."""
    made: Any = SimpleNamespace(now=1_000.0, monotonic=lambda: made.now)
    monkeypatch.setattr(watcher, "time", made)
    return made


def test_the_first_ring_is_not_delayed_and_one_for_nothing_brings_a_growing_pause(
    clock: Any,
) -> None:
    rings: list[float] = []
    alarm = Alarm(rings.append)
    pauses = []

    alarm.ring()
    for _ in range(8):
        alarm.claimed(found=False)
        for _ in range(3):
            alarm.ring()
        pauses.append(rings[-1] - clock.now)
        clock.now = rings[-1]

    assert (rings[0], len(rings)) == (0.0, 9)
    assert 0.01 <= pauses[0] <= 0.02
    assert all(0.125 <= pause <= 0.25 for pause in pauses[4:])


def test_looks_are_frequent_after_a_job_and_then_rarer_up_to_the_poll(clock: Any) -> None:
    pace, job = Pace(timedelta(seconds=2)), 1_000.0

    def pause(since_job: float, took: float = 0, is_due: bool = False) -> float:
        clock.now = job + since_job
        return pace.pause(job, took=took, is_due=is_due)

    assert all(pause(9) <= 0.02 for _ in range(5))
    later = [pause(11) for _ in range(10)]
    assert later[:7] == sorted(later[:7])
    assert 1.6 <= later[-1] <= 2
    assert pause(1) <= 0.02
    assert [pause(1, is_due=True) for _ in range(10)][-1] >= 1.6
    assert pause(1, took=0.5) >= 4
