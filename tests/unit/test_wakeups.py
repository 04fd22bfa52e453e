"""The pauses of wake-ups, by a clock of the test.

Inner modules are imported since the figures of docs/wake-ups.md are too short to be measured.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from sa_jobqueue.wakeups import alarm as alarm_module
from sa_jobqueue.wakeups.alarm import Alarm
from sa_jobqueue.wakeups.pace import Pace
from sa_jobqueue.wakeups.watcher import Watcher
from sa_jobqueue.worker.idle import Idle


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(alarm_module, "time", clock)
    return clock


def fruitless(alarm: Alarm, clock: Clock) -> float:
    """Ring for nothing; return how long the pause is that follows."""
    alarm.ring()
    alarm.claimed(found=False)
    alarm.ring()
    return alarm.pending_at - clock.now


def alarm_of(rings: list[float], clock: Clock) -> Alarm:
    return Alarm(lambda: rings.append(clock.now), lambda: None)


def test_the_first_ring_is_not_delayed_and_one_for_nothing_brings_a_growing_pause(
    clock: Clock,
) -> None:
    rings: list[float] = []
    alarm = alarm_of(rings, clock)
    pauses = []

    for _ in range(8):
        pauses.append(fruitless(alarm, clock))
        clock.now = alarm.pending_at

    assert len(rings) == 8
    assert 0.01 <= pauses[0] <= 0.02
    assert all(0.125 <= pause <= 0.25 for pause in pauses[4:])


def test_a_ring_in_a_pause_is_told_of_once_and_comes_at_its_end(clock: Clock) -> None:
    rings: list[float] = []
    told: list[float] = []
    alarm = Alarm(lambda: rings.append(clock.now), lambda: told.append(alarm.pending_at))
    alarm.ring()
    alarm.claimed(found=False)

    for _ in range(3):
        alarm.ring()
        alarm.ring_postponed()
    assert (len(rings), told) == (1, [alarm.pending_at])
    clock.now = alarm.pending_at
    for _ in range(3):  # the watcher, and the worker itself
        alarm.ring_postponed()

    assert (len(rings), alarm.pending_at) == (2, math.inf)


def test_looks_are_frequent_after_a_job_and_then_rarer_up_to_the_poll() -> None:
    pace = Pace(timedelta(seconds=2))

    def pause(since_job: float, took: float = 0, for_nothing: int = 0) -> float:
        return pace.pause(since_job=since_job, took=took, for_nothing=for_nothing)

    assert all(pause(9) <= 0.02 for _ in range(5))
    later = [pause(11) for _ in range(10)]
    assert later[:7] == sorted(later[:7])
    assert 1.6 <= later[-1] <= 2
    assert pause(1, for_nothing=10) >= 1.6
    assert pause(1, took=0.5) >= 4


@pytest.mark.parametrize(
    ("healthy", "looks", "poll", "least", "most"),
    [
        (False, False, 2, 0, 0.1),  # nothing wakes the worker: it begins with short pauses
        (True, False, 2, 1, 2),
        (True, True, 2, 5, 10),
        (True, True, 60, 30, 60),
    ],
)
def test_a_worker_claims_rarely_while_its_watcher_looks_for_it(
    healthy: bool, looks: bool, poll: float, least: float, most: float
) -> None:
    wakeups: Any = Mock(healthy=healthy, looks=looks)
    idle = Idle(poll=timedelta(seconds=poll), interval=timedelta(0), wakeups=wakeups)

    pause = idle.claim_at(claimed=True, found=False, at_once=False) - time.monotonic()

    assert least - 0.1 < pause <= most


def test_a_look_that_always_fails_is_told_once_and_tried_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alarm, pauses = Alarm(lambda: None, lambda: None), list[float]()
    alarm.claimed(found=False)
    source: Any = Mock(tells=True, often=False, rings=False)
    source.opened = nullcontext
    source.wait.return_value = False
    source.ask.side_effect = LookupError("the look fails")
    watcher = Watcher(alarm, Mock(knows_times=True), poll=timedelta(minutes=1))
    watcher._source = source

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            watcher.end()

    monkeypatch.setattr(watcher, "_pause_for", pause)
    monkeypatch.setattr("sa_jobqueue.wakeups.watcher.random.uniform", lambda low, high: 1.0)
    watcher.look_soon()

    watcher._run()

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert len(caplog.messages) == 1
    assert "do not wake this worker" in caplog.text
