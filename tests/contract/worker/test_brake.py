"""A queue whose jobs all fail is claimed from more slowly."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import update

from sa_jobqueue.worker import Retry
from tests.clock import Clock
from tests.contract.worker.driver import SOON, Workers
from tests.contract.worker.faults import Picky
from tests.models import Task
from tests.support import until

pytestmark = pytest.mark.usefixtures("picky")

#: After so many failures in a row.
FAILURES = 20

ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


def fails(task: Task) -> None:
    raise OSError("no route")


def wants_a_retry(task: Task) -> Retry:
    return Retry(SOON, "busy")


def fails_or_wants_a_retry(task: Task) -> Retry:
    if int(task.name) % 2:
        fails(task)
    return wants_a_retry(task)


@ANYWHERE
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("handle", [fails, wants_a_retry, fails_or_wants_a_retry])
def test_after_many_failures_one_job_is_claimed_after_each_growing_pause_until_one_is_done(
    workers: Workers, handle: Any, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Other queues of the worker are not slowed down."""
    began: list[float] = []
    mended: list[float] = []

    def try_to(task: Task) -> Any:
        began.append(time.monotonic())
        return None if mended else handle(task)

    workers.add(*map(str, range(FAILURES + 30)), max_attempts=1)
    queues = [workers.queue(Task, try_to), workers.queue(Picky)]
    with workers.running(
        queues, concurrency=concurrency, limit=concurrency, owner="w", reap_every=None
    ):
        until(lambda: len(began) > FAILURES)
        workers.add("other", entity=Picky)
        until(lambda: workers.handled)
        until(lambda: len(began) >= FAILURES + concurrency + 3)
        mended.append(time.monotonic())
        until(lambda: "unclaimed" not in workers.statuses().values())
        done_at = time.monotonic()

    # A busy machine may delay a call, but not shorten a pause.
    last = [later - earlier for earlier, later in pairwise(began)]
    assert last[FAILURES + concurrency + 1] > 0.15
    assert done_at - mended[0] < 10
    assert caplog.text.count("claims from it more slowly until a job succeeds") == 1


@ANYWHERE
def test_the_pauses_grow_to_ten_seconds(workers: Workers, clock: Clock) -> None:
    workers.add(*map(str, range(FAILURES + 20)), max_attempts=1)

    def let_pass(task: Task, outcome: object) -> None:
        clock.jump(10.1)

    with workers.running(
        workers.queue(Task, fails), owner="w", reap_every=None, on_outcome=let_pass
    ):
        until(lambda: set(workers.statuses().values()) == {"failed"})


@ANYWHERE
def test_a_job_that_can_be_neither_finished_nor_failed_counts_as_a_failure(
    threads: Workers, clock: Clock
) -> None:
    threads.add(*["stuck"] * (FAILURES + 20), entity=Picky)

    with threads.running(Picky, owner="w", reap_every=None):
        until(lambda: len(threads.handled) >= FAILURES)
        time.sleep(0.3)
        assert len(threads.handled) < FAILURES + 5
        threads.execute(update(Picky).values(name="free"))


@ANYWHERE
def test_a_success_among_failures_or_a_drain_knows_no_brake(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add(*map(str, range(60)), max_attempts=1)

    def fail_most(task: Task) -> None:
        workers.note(task)
        if int(task.name) % 15:
            raise OSError("no route")

    with workers.running(workers.queue(Task, fail_most), owner="w"):
        until(lambda: len(workers.handled) == 60)
    workers.add(*map(str, range(FAILURES + 10)), max_attempts=1)
    workers.drain(Task, fails)

    assert "unclaimed" not in workers.statuses().values()
    assert "more slowly" not in caplog.text
