"""A worker is stopped, interrupted or cancelled, and handlers run for too long."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sa_jobqueue import reap
from sa_jobqueue.worker import HandlerTimeout, job_context
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import deadlock, failing, heard
from tests.models import Task
from tests.support import until

SHORT = timedelta(milliseconds=200)
LONG = timedelta(minutes=5)

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What handlers wait for that overstay their time; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


# stop()


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_stop_waits_for_no_locked_row_and_releases_the_others(workers: Workers) -> None:
    keys = workers.add(*"abcd")
    begun, go_on = threading.Event(), threading.Event()

    def handle(task: Task) -> None:
        begun.set()
        assert go_on.wait(20)

    queue = workers.queue(Task, handle)
    with workers.plain.connect() as stranger:
        with workers.running(queue, limit=4, grace=SHORT, reap_every=None) as worker:
            assert begun.wait(20)
            stranger.execute(select(Task.id).where(Task.id == keys[2]).with_for_update())
            worker.stop()
            go_on.set()
            began = time.monotonic()
        assert time.monotonic() - began < 8  # tests.support lets statements wait for 10 seconds
        stranger.rollback()

    assert workers.statuses() == {
        "a": "done",
        "b": "unclaimed",
        "c": "claimed",
        "d": "unclaimed",
    }


@ANYWHERE
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("by", ["handler", "thread", "signal"])
def test_stopping_lets_the_running_jobs_finish_and_releases_the_rest(
    workers: Workers, by: str, concurrency: int
) -> None:
    workers.add(*"abcd")
    met = threading.Barrier(concurrency)
    before = signal.getsignal(signal.SIGTERM)

    def handle(task: Task) -> None:
        met.wait(20)
        if by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif by == "thread":
            threading.Thread(target=workers.worker.stop).start()
        else:
            workers.worker.stop()
        until(lambda: workers.worker.stopping)  # a signal reaches the main thread

    worker = workers.make(workers.queue(Task, handle), limit=4, concurrency=concurrency)
    with worker.stopping_on_signals():
        workers.run(worker)

    assert signal.getsignal(signal.SIGTERM) is before
    rows = workers.rows()
    for name in "abcd"[:concurrency]:
        assert rows[name] == ("done", 1, None)
    for name in "abcd"[concurrency:]:
        assert rows[name] == ("unclaimed", 0, None)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C works, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@ANYWHERE
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_finishes_what_was_handled_and_releases_the_rest(workers: Workers) -> None:
    workers.add("a", "b", "c")

    def handle(task: Task) -> None:
        if task.name == "b":
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: job_context().asked_to_stop or workers.statuses()["a"] == "done")

    with pytest.raises(KeyboardInterrupt):
        workers.run(workers.make(workers.queue(Task, handle), limit=3, poll=LONG))

    assert workers.rows()["a"] == ("done", 1, None)
    assert "claimed" not in workers.statuses().values()
    assert workers.rows()["c"] == ("unclaimed", 0, None)


@ANYWHERE
def test_an_idle_worker_stops_at_once(workers: Workers) -> None:
    turns: list[float] = []

    with (
        heard(workers.engine, "commit", lambda connection: turns.append(time.monotonic())),
        workers.running(Task, poll=LONG),
    ):
        until(lambda: turns and time.monotonic() > turns[-1] + 0.3)
        began = time.monotonic()

    assert time.monotonic() < began + 10


# While the database is away


@ANYWHERE
@pytest.mark.parametrize("owner", [None, "w"])
def test_a_worker_that_waits_to_claim_stops_at_once(
    workers: Workers, db_alias: str, owner: str | None
) -> None:
    workers.add("a")

    with (
        failing(workers.engine, lambda text: True, lambda: deadlock(db_alias)) as met,
        workers.running(Task, owner=owner) as worker,
    ):
        until(lambda: len(met) > 3)
        began = time.monotonic()
        worker.stop()

    assert time.monotonic() < began + 10
    assert workers.statuses() == {"a": "unclaimed"}


@ANYWHERE
def test_a_worker_that_is_to_stop_still_waits_to_finish_what_it_has_handled(
    workers: Workers, db_alias: str
) -> None:
    workers.add("a", "b", "c")

    def handle(task: Task) -> None:
        workers.note(task)
        if task.name == "b":
            workers.worker.stop()

    def goes_wrong(text: str) -> bool:
        return "b" in workers.handled and len(met) < 8

    worker = workers.make(workers.queue(Task, handle), owner="w", limit=3, reap_every=None)
    with failing(workers.engine, goes_wrong, lambda: deadlock(db_alias)) as met:
        workers.run(worker)

    assert workers.handled == ["a", "b"]
    assert workers.statuses() == {"a": "done", "b": "done", "c": "unclaimed"}


# Timeouts and the grace of a stop, in threads


def test_a_plain_handler_that_overstays_its_timeout_has_failed_and_ends_the_worker(
    threads: Workers, released: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises afterwards changes nothing."""
    threads.add(*"abcd", max_attempts=1)
    gone_on = threading.Event()

    def overstay(task: Task) -> None:
        until(lambda: threads.statuses()["a"] == "failed")
        gone_on.set()
        raise RuntimeError("too late")

    def handle(task: Task) -> None:
        until(lambda: job_context().asked_to_stop)  # it may end within the grace

    queues = [
        threads.queue(Task, overstay, Task.name == "a", timeout=SHORT),
        threads.queue(Task, handle, Task.name != "a"),
    ]
    with pytest.raises(HandlerTimeout, match=r"^overstay still runs after its timeout of 0\.2 s;"):
        threads.run(threads.make(queues, concurrency=2, limit=4))
    gone_on.wait(30)

    rows = threads.rows()
    assert rows["a"][:2] == ("failed", 1)
    assert "HandlerTimeout" in str(rows["a"][2])
    assert rows["b"][:2] == ("done", 1)
    assert rows["d"] == ("unclaimed", 0, None)
    assert len([text for text in caplog.messages if "failed, attempt 1 of 1" in text]) == 1


@ANYWHERE
@pytest.mark.parametrize("error", [None, RuntimeError("the socket timed out"), SystemExit(3)])
def test_a_plain_transactional_handler_that_overstays_its_timeout_is_rolled_back(
    threads: Workers, error: BaseException | None
) -> None:
    threads.add("a", max_attempts=1)

    def handle(own: Session, task: Task) -> None:
        task.priority = 7
        own.flush()
        until(lambda: job_context().asked_to_stop)
        if error is not None:
            raise error

    with pytest.raises(HandlerTimeout):
        threads.run(threads.make(threads.queue(Task, handle, transactional=True, timeout=SHORT)))

    found = threads.rows()["a"]
    assert found[:2] == ("failed", 1)
    assert "still runs after its timeout" in str(found[2])
    assert threads.priorities() != {"a": 7}


@ANYWHERE
def test_after_the_grace_the_jobs_of_plain_handlers_are_released(
    threads: Workers, released: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers that are stuck do not hold up the end one after the other."""
    threads.add(*"abcd")
    met = threading.Barrier(3)

    def handle(task: Task) -> None:
        met.wait(20)
        threads.worker.stop()
        released.wait(60)

    worker = threads.make(threads.queue(Task, handle), concurrency=3, limit=4, grace=SHORT)
    began = time.monotonic()
    threads.run(worker)

    assert time.monotonic() < began + 15
    assert set(threads.rows().values()) == {("unclaimed", 0, None)}
    overdue = [each for each in caplog.records if "still runs 0.2 s" in each.getMessage()]
    assert len(overdue) == 3
    assert "its job is released, and its handler goes on until its" in overdue[0].getMessage()
    assert overdue[0].getMessage().endswith("The handler is handle")
    fields = vars(overdue[0])
    assert (fields["job_class"], fields["attempt"], fields["status"]) == ("Task", 1, "claimed")
    assert 0.1 < fields["duration"] < 60


@ANYWHERE
def test_after_the_grace_a_plain_transactional_handler_is_rolled_back(
    threads: Workers, session: Session, released: threading.Event
) -> None:
    threads.add("a")
    ended = threading.Event()

    def handle(own: Session, task: Task) -> None:
        task.priority = 7
        threads.worker.stop()
        released.wait(60)
        ended.set()

    threads.run(threads.make(threads.queue(Task, handle, transactional=True), grace=SHORT))
    released.set()
    until(ended.is_set)

    until(lambda: len(reap(session, Task)) == 1)  # its owner is gone
    session.commit()
    assert (threads.priorities() != {"a": 7}, threads.statuses()) == (True, {"a": "unclaimed"})


# Timeouts, the grace of a stop, and cancellation, in an event loop


@pytest.fixture
def awaiting(engine: Any) -> Iterator[Workers]:
    """AsyncWorkers alone."""
    workers = Workers("asyncio", engine)
    yield workers
    workers.engine.dispose(close=False)


Awaited = Callable[[Task], Awaitable[None]]


def declared(workers: Workers, handle: Awaited, transactional: bool, **options: Any) -> Any:
    """Return a queue with an awaited handler; a transactional one writes something first."""

    async def handle_in(own: Any, task: Task) -> None:
        task.priority = 7
        await own.flush()
        await handle(task)

    handler: Any = handle_in if transactional else handle
    return workers.queue(Task, handler, transactional=transactional, **options)


class Sleeper:
    """An awaited handler that sleeps for all jobs but b, and notes its cancellation."""

    def __init__(self, kind: str = "sleeps") -> None:
        self.kind = kind
        self.begun = asyncio.Event()
        self.cancelled: list[str] = []

    async def __call__(self, task: Task) -> None:
        if task.name == "b":
            return
        self.begun.set()
        try:
            if self.kind == "waits for nothing":
                while True:
                    await asyncio.sleep(0)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.append(task.name)
            if self.kind != "hides":
                raise


@ANYWHERE
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("kind", ["sleeps", "waits for nothing", "hides"])
def test_an_awaited_handler_is_cancelled_at_its_timeout_and_the_worker_goes_on(
    awaiting: Workers, transactional: bool, kind: str
) -> None:
    awaiting.add("a", "b", max_attempts=1)
    handle = Sleeper(kind)

    awaiting.drain(declared(awaiting, handle, transactional, timeout=SHORT))

    assert handle.cancelled == ["a"]
    rows = awaiting.rows()
    assert rows["a"][:2] == ("failed", 1)
    assert "did not end within 0.2 s" in str(rows["a"][2])
    assert rows["b"] == ("done", 1, None)
    assert awaiting.priorities()["a"] != 7


@pytest.mark.only_on("sqlite")
def test_a_statement_of_a_handler_that_is_cancelled_leaves_the_file_free(
    awaiting: Workers,
) -> None:
    awaiting.add("a", "b", max_attempts=1)
    numbers = "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n)"
    endless = text(f"{numbers} SELECT sum(x) FROM n")

    async def handle(session: Any, task: Task) -> None:
        if task.name == "a":
            await session.execute(endless)

    awaiting.drain(awaiting.queue(Task, handle, transactional=True, timeout=SHORT))

    assert {name: row[0] for name, row in awaiting.rows().items()} == {"a": "failed", "b": "done"}


@ANYWHERE
def test_after_the_grace_awaited_handlers_are_cancelled_and_their_jobs_released(
    awaiting: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    awaiting.add(*"abc")
    handle = Sleeper()

    async def stop_at_b(task: Task) -> None:
        if task.name == "b":  # both run
            awaiting.worker.stop()
        await handle(task)

    queue = awaiting.queue(Task, stop_at_b)
    awaiting.run(awaiting.make(queue, concurrency=2, limit=3, grace=SHORT))

    assert handle.cancelled == ["a"]
    released = ("unclaimed", 0, None)
    assert awaiting.rows() == {"a": released, "b": ("done", 1, None), "c": released}
    (overdue,) = [each for each in caplog.records if "still runs 0.2 s" in each.getMessage()]
    assert "its job is released, and its handler is cancelled" in overdue.getMessage()
    assert vars(overdue)["job_class"] == "Task"


def cancel_when(workers: Workers, begun: Callable[[], object], queue: Any, **options: Any) -> None:
    """Run a worker, and cancel the run, or all tasks as asyncio.run() does, as options say."""
    everything = options.pop("everything", False)

    async def run() -> None:
        worker = workers.make(queue, **options)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(20):
            while not begun():
                await asyncio.sleep(0.01)
            others = asyncio.all_tasks() - {asyncio.current_task()} if everything else {running}
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            with pytest.raises(asyncio.CancelledError):
                await running
        await worker.engine.dispose()

    asyncio.run(run())


@ANYWHERE
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_cancelled_worker_cancels_its_handlers_and_releases_their_jobs(
    awaiting: Workers, transactional: bool, everything: bool
) -> None:
    awaiting.add(*"bacd")
    handle = Sleeper()
    queue = declared(awaiting, handle, transactional)

    cancel_when(
        awaiting,
        lambda: handle.begun.is_set() and awaiting.statuses()["b"] == "done",
        queue,
        everything=everything,
        limit=4,
        # On SQLite a transactional handler keeps b from being finished.
        concurrency=1 if transactional else 2,
    )

    rows, released = awaiting.rows(), ("unclaimed", 0, None)
    assert {error for _, _, error in rows.values()} == {None}
    assert awaiting.priorities()["a"] != 7
    if not everything:  # else the tasks that release the jobs may be cancelled, too
        assert rows == {"b": ("done", 1, None), "a": released, "c": released, "d": released}


@pytest.mark.parametrize("moment", ["begin", "commit"])
def test_a_worker_that_is_cancelled_in_a_turn_leaves_nothing_claimed(
    awaiting: Workers, moment: str
) -> None:
    awaiting.add("a", "b")
    runs: list[Any] = []

    def cancel(connection: object) -> None:
        if awaiting.handled and not awaiting.worker.stopping:
            runs[0].cancel()

    async def handle(task: Task) -> None:
        awaiting.note(task)

    async def run() -> None:
        worker = awaiting.make(awaiting.queue(Task, handle), reap_every=None)
        runs.append(asyncio.create_task(worker.run()))
        with pytest.raises(asyncio.CancelledError):
            await runs[0]
        await worker.engine.dispose()

    with heard(awaiting.engine, moment, cancel):
        asyncio.run(run())

    assert "claimed" not in awaiting.statuses().values()
    assert awaiting.rows()["a"] == ("done", 1, None)
