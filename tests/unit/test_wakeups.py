"""The pauses of wake-ups, by a clock of the test.

Inner modules are imported since the figures of docs/wake-ups.md are too short to be measured.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine

from sa_jobqueue.process.runtime import THREADS
from sa_jobqueue.wakeups import alarm as alarm_module
from sa_jobqueue.wakeups.alarm import Alarm
from sa_jobqueue.wakeups.data_version import DataVersion
from sa_jobqueue.wakeups.listening import Listening
from sa_jobqueue.wakeups.looking import Looking
from sa_jobqueue.wakeups.pace import Pace
from sa_jobqueue.wakeups.source import Source
from sa_jobqueue.wakeups.watcher import Watcher
from sa_jobqueue.worker.hands import Hands
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


def test_a_job_ends_the_pause(clock: Clock) -> None:
    rings: list[float] = []
    alarm = alarm_of(rings, clock)
    fruitless(alarm, clock)
    clock.now = alarm.pending_at

    alarm.ring()
    alarm.claimed(found=True)
    alarm.claimed(found=False)
    alarm.ring()

    assert len(rings) == 3


def test_a_claim_that_nobody_rang_for_brings_no_pause(clock: Clock) -> None:
    rings: list[float] = []
    alarm = alarm_of(rings, clock)

    alarm.claimed(found=False)
    alarm.ring()

    assert rings == [clock.now]


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


class Watched:
    """A source that ends the watcher after some waits, and notes how long they were.

    Its clock stands still between the waits, however busy the machine is.
    """

    def __init__(self, like: Source) -> None:
        self.tells, self.often, self.rings = like.tells, like.often, like.rings
        self.watcher: Watcher
        self.waits: list[float] = []
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    def opened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait(self, seconds: float, pause: object) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        if len(self.waits) == 8:
            self.watcher.end()
        return False

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(None)


def waits_of_idle(like: Source) -> list[float]:
    """Return the waits of a watcher of a worker that is just idle, with no job due."""
    alarm, source = Alarm(lambda: None, lambda: None), Watched(like)
    alarm.claimed(found=False)
    look: Any = Mock(knows_times=True, **{"due_in.return_value": None})
    source.watcher = watcher = Watcher(alarm, look, poll=timedelta(minutes=1))
    watcher._source = source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa_jobqueue.wakeups.watcher.time", source)
        watcher.look_soon()
        watcher._run()
    return source.waits[2:]  # without the proof that it hears, and the wait before the first look


def listening(*, tells: bool) -> Listening:
    any_: Any = Mock()
    return Listening(any_, any_, [], tells=tells, heard=any_, noticed=any_)


def test_a_watcher_that_is_told_nothing_looks_every_20_ms() -> None:
    any_: Any = Mock()

    for source in (listening(tells=False), Looking(any_)):  # PostgreSQL; MySQL and MariaDB
        waits = waits_of_idle(source)
        assert len(waits) == 6
        assert all(0.01 < wait <= 0.02 for wait in waits)


def test_a_watcher_that_is_told_looks_once() -> None:
    any_: Any = Mock()

    for source in (listening(tells=True), DataVersion(any_)):
        assert min(waits_of_idle(source)) > 20


def test_the_file_of_sqlite_is_asked_for_commits_every_3_ms(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/file.db")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=wal")
    source, pauses = DataVersion(engine), list[float]()

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 5:
            with engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE job (id INTEGER)")
        return False

    with source.opened():
        assert source.wait(60, pause)

    assert pauses == [0.003] * 5


def test_a_wake_up_during_a_claim_brings_another_claim() -> None:
    hands: Hands[Any] = Hands(THREADS, threading.Event(), limit=1, slots=1)
    later = time.monotonic() + 60
    with hands:
        assert hands.begin_turn(in_slot=True) is not None

    hands.wake()

    with hands:
        hands.next_claim(later)
        assert hands.claim_at == 0
        hands.end_turn()
        assert hands.begin_turn(in_slot=True) is not None
        hands.next_claim(later)
        assert later == hands.claim_at < math.inf


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


def test_a_claim_that_was_put_off_comes_at_once_however_long_the_worker_was_idle() -> None:
    idle = Idle(poll=timedelta(minutes=1), interval=timedelta(0))
    for _ in range(12):
        idle.claim_at(claimed=True, found=False, at_once=False)

    assert idle.claim_at(claimed=True, found=False, at_once=True) == 0.0
    assert idle.claim_at(claimed=False, found=False, at_once=True) == 0.0


def test_an_idle_worker_claims_when_a_queue_is_to_be_asked_again() -> None:
    idle = Idle(poll=timedelta(minutes=1), interval=timedelta(seconds=1))
    for _ in range(12):
        idle.claim_at(claimed=True, found=False, at_once=False)
    now = time.monotonic()

    soon = idle.claim_at(claimed=True, found=False, at_once=False, held_until=now + 5)
    sooner = idle.claim_at(claimed=True, found=False, at_once=False, held_until=now)

    assert soon - now == pytest.approx(5, abs=0.5)
    assert sooner - now == pytest.approx(1, abs=0.5)  # the interval
