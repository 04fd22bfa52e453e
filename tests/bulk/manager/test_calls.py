"""Calls of a manager: one at a time, with stop, Ctrl-C, workers and progress."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from sa_jobqueue import ArgumentError, LockTimeout
from sa_jobqueue.bulk import BulkLoad, InvalidState, LoadStopped, Log, Metadata, Progress
from sa_jobqueue.bulk.progress import status_of
from sa_jobqueue.bulk.states import BLOCKED, CLEANING, INSERTING, PREPARING
from tests.bulk.fakes import Killed, Numbers
from tests.bulk.manager.support import ALL, counts


def test_a_load_has_one_manager_at_a_time(
    source: Numbers, log: Log, new_log: Callable[[], Log]
) -> None:
    first = BulkLoad(source, log)
    first.prepare()
    second = BulkLoad(source.anew(), new_log())

    assert second.state is PREPARING
    for call in (second.insert, second.run, second.rollback, second.clean):
        with pytest.raises(LockTimeout, match="Another manager"):
            call()
    first.insert()

    assert second.state is CLEANING
    second.rollback()


def test_a_reader_does_not_change_what_a_running_call_knows(source: Numbers, log: Log) -> None:
    """Look as a thread does that asked for the state before the call began."""
    known = []

    def look(verb: str, batch: list[int]) -> None:
        known.append(log.marks)
        assert status_of(log).state is INSERTING

    source.after = look

    BulkLoad(source, log).run()

    assert len(known) == 4
    assert all(marks is log.marks for marks in known)


def test_run_looks_at_a_copy_of_the_log(
    source: Numbers, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's call may be under way with it."""
    looked: list[Log] = []
    peek = type(log).peek

    def see(which: Log) -> Any:
        looked.append(which)
        return peek(which)

    monkeypatch.setattr(type(log), "peek", see)

    BulkLoad(source, log).run()

    assert looked
    assert log not in looked


def test_a_call_while_another_is_under_way_is_refused(source: Numbers, log: Log) -> None:
    load = BulkLoad(source, log)
    refused: list[BaseException] = []

    def call(verb: str, batch: list[int]) -> None:
        with pytest.raises(InvalidState, match=r"stop\(\)") as error:
            load.rollback()
        refused.append(error.value)
        assert load.state is INSERTING

    source.after = call
    load.run()

    assert len(refused) == 4


@pytest.mark.parametrize("workers", [1, 3])
def test_stop_ends_after_the_current_batches_and_says_how_to_go_on(workers: int, log: Log) -> None:
    source = Numbers(30, 1)  # more batches than are under way at a time
    load = BulkLoad(source, log, workers=workers)
    source.after = lambda verb, batch: load.stop()

    with pytest.raises(LoadStopped, match=r"batches.*run\(\) goes on, rollback\(\)"):
        load.run()

    assert load.state is BLOCKED
    assert load.status().inserted == len(source.updated) <= 2 * workers + 1
    source.after = lambda verb, batch: None
    load.run()
    assert source.table == set(range(30))
    assert len(source.updated) == 30


def test_a_rollback_can_be_stopped_too(source: Numbers, log: Log) -> None:
    load = BulkLoad(source, log)
    load.run()
    source.threads = False
    source.after = lambda verb, batch: load.stop()

    with pytest.raises(LoadStopped):
        load.rollback()

    assert len(source.rolled_back) == 1
    assert load.state is BLOCKED


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, also below a shell that runs us in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_after_the_current_batch(source: Numbers, log: Log) -> None:
    before = signal.getsignal(signal.SIGINT)

    def press_once(verb: str, batch: list[int]) -> None:
        source.after = lambda verb, batch: None
        signal.raise_signal(signal.SIGINT)

    source.after = press_once

    with pytest.raises(LoadStopped, match=r"run\(\) goes on") as raised:
        BulkLoad(source, log).run()

    assert not hasattr(raised.value, "__notes__")  # the message says all
    assert 1 <= len(source.updated) < 4
    assert counts(log)[1] == len(source.updated)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_interrupts(source: Numbers, log: Log) -> None:
    def press_twice(verb: str, batch: list[int]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    source.after = press_twice
    source.threads = False

    with pytest.raises(KeyboardInterrupt):
        BulkLoad(source, log).run()


def test_a_handler_of_ctrl_c_that_is_there_already_is_left_alone(source: Numbers, log: Log) -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    source.after = lambda verb, batch: signal.raise_signal(signal.SIGINT)
    source.threads = False

    try:
        BulkLoad(source, log).run()
    finally:
        signal.signal(signal.SIGINT, before)

    assert len(pressed) == 4
    assert source.table == ALL


def test_a_load_runs_in_any_thread(source: Numbers, log: Log) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(BulkLoad(source, log).run).result()

    assert source.table == ALL


def test_workers_bring_batches_in_at_the_same_time(source: Numbers, log: Log) -> None:
    together = threading.Barrier(3, timeout=20)
    source.before = lambda verb, batch: verb == "update" and batch[0] < 9 and together.wait()

    BulkLoad(source, log, workers=3).run()

    assert source.table == ALL
    source.before = lambda verb, batch: batch[0] < 9 and together.wait()
    BulkLoad(source, log, workers=3).rollback()
    assert source.table == set()


def test_an_error_in_one_worker_ends_the_load_and_the_other_batches_count(
    source: Numbers, log: Log
) -> None:
    source.killed("before", "update", 3)

    with pytest.raises(Killed) as raised:
        BulkLoad(source, log, workers=2).run()

    assert "run() goes on" in raised.value.__notes__[0]
    BulkLoad(source.anew(), log, workers=2).run()
    assert source.table == ALL


def test_progress_is_reported_after_each_batch(source: Numbers, log: Log) -> None:
    told: list[Progress] = []

    BulkLoad(source, log, progress=told.append).run()

    assert [one.inserted for one in told] == [1, 2, 3, 4]
    assert [one.rows for one in told] == [3, 6, 9, 10]
    assert {one.batches for one in told} == {4}
    assert told[-1].state is INSERTING


@pytest.mark.parametrize(
    ("inserted", "batches", "total", "said"),
    [
        (3, None, None, "3 batches, 9 rows"),
        (4, 4, None, "4 of 4 batches, at most 12 rows"),
        (0, 4, None, "0 of 4 batches, 0 rows"),
        (4, 4, 10, "4 of 4 batches, 10 rows"),
    ],
)
def test_progress_reports_no_more_rows_than_are_known(
    inserted: int, batches: int | None, total: int | None, said: str
) -> None:
    progress = Progress(
        state=BLOCKED, inserted=inserted, batches=batches, batch_size=3, total=total
    )

    assert str(progress) == f"BLOCKED: {said} inserted"


def test_progress_is_reported_while_batches_are_prepared(source: Numbers, log: Log) -> None:
    told: list[Progress] = []

    with BulkLoad(source, log, progress=told.append) as load:
        load.prepare()

    assert [(one.divided, one.inserted) for one in told] == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_one_worker_at_a_time_reports_progress(log: Log) -> None:
    source, telling = Numbers(9, 1), threading.Lock()
    together = threading.Barrier(3, timeout=20)
    source.after = lambda verb, batch: together.wait()

    def tell(progress: Progress) -> None:
        assert telling.acquire(blocking=False)
        sleep(0.01)  # the other workers are about to report, too
        telling.release()

    BulkLoad(source, log, workers=3, progress=tell).run()

    assert len(source.updated) == 9


class AsyncNumbers(Numbers):
    """Numbers that are divided asynchronously."""

    loop: asyncio.AbstractEventLoop

    def divide(self) -> AsyncIterator[list[int]]:  # type: ignore[override]  # either is allowed
        plain = super().divide

        async def batches() -> AsyncIterator[list[int]]:
            self.loop = asyncio.get_running_loop()
            for batch in plain():
                await asyncio.sleep(0)
                yield batch

        return batches()


def test_a_source_may_divide_itself_asynchronously(log: Log) -> None:
    source = AsyncNumbers(10, 3)
    with pytest.raises(Killed):
        BulkLoad(source.killed("before", "divide", 6), log).run()
    again = AsyncNumbers(10, 3, source.table)

    BulkLoad(again, log).run()

    assert source.table == ALL


@pytest.mark.parametrize("threads", [True, False])
def test_the_event_loop_of_a_source_is_closed_when_the_load_fails(log: Log, threads: bool) -> None:
    source = AsyncNumbers(10, 1)
    source.killed("before", "update", 1)
    source.threads = threads

    with pytest.raises(Killed) as raised:
        BulkLoad(source, log).run()

    assert raised.traceback
    assert source.loop.is_closed()


def test_a_load_without_workers_is_refused(source: Numbers, log: Log) -> None:
    with pytest.raises(ArgumentError, match="at least one worker"):
        BulkLoad(source, log, workers=0)


@pytest.mark.parametrize("folder", ["loads/may", Path("loads/may")])
def test_a_folder_is_refused_as_a_log_with_the_way_out(source: Numbers, folder: Any) -> None:
    with pytest.raises(ArgumentError, match=r"like FileLog\('loads/may'\)"):
        BulkLoad(source, folder)


@pytest.mark.parametrize("given", [{"total": -1, "batch_size": 1}, {"total": 1, "batch_size": 0}])
def test_negative_counts_are_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="a batch has at least one row"):
        Metadata(**given)


def test_a_load_without_rows_finishes(log: Log) -> None:
    load: BulkLoad[Any] = BulkLoad(Numbers(0, 3), log)

    load.run()

    assert load.state is CLEANING
    assert counts(log) == (0, 0)


def test_the_generator_is_read_no_further_than_the_workers_need(log: Log) -> None:
    source = Numbers(60, 1)
    divided: list[int] = []
    ahead: list[int] = []

    def see(verb: str, batch: list[int]) -> None:
        if verb == "divide":
            divided.append(batch[0])
        else:
            ahead.append(len(divided) - len(source.updated))

    source.before = see
    BulkLoad(source, log, workers=2).run()

    assert max(ahead) <= 2 * 2 + 1
