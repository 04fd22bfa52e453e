"""The heartbeat renews claims while handlers run."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import reap
from sa_jobqueue.events import listen
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import failing, heard, renewal_of, transient
from tests.models import Render, Task
from tests.support import SERVERS, make_engine, until

SHORT = timedelta(milliseconds=600)

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

is_renewal = renewal_of("task")


def wait_for_renewals(workers: Workers, names: str) -> None:
    """Wait until the claims of these jobs, and of no others, are renewed."""
    before = workers.dates()
    until(lambda: workers.renewed(before) == names)


def test_a_long_running_job_and_the_jobs_behind_it_keep_their_claims_beyond_the_lease(
    workers: Workers, session: Session
) -> None:
    """Claims are renewed in time for the shortest lease of a worker's queues."""
    workers.add("a", "b")

    def handle(task: Task) -> None:
        if task.name == "a":
            claimed = max(workers.dates().values())
            until(lambda: min(workers.dates().values()) > claimed + 2 * SHORT)
            assert not reap(session, Task, lease=2 * SHORT)
            session.rollback()

    others = workers.queue(Render, lease=timedelta(hours=1))
    workers.drain([others, workers.queue(Task, handle, lease=SHORT)], limit=2, owner="plain")

    assert set(workers.statuses().values()) == {"done"}
    assert "sa_jobqueue heartbeat" not in {thread.name for thread in threading.enumerate()}


@ANYWHERE
def test_claims_are_renewed_where_the_handler_has_the_only_connection(
    threads: Workers, db_url: URL
) -> None:
    threads.add("a", "b")
    engine = make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=5)

    def handle(task: Task) -> None:
        before = threads.dates()
        with engine.connect():
            until(lambda: threads.renewed(before))

    threads.drain(threads.queue(Task, handle, lease=SHORT), bind=engine)
    engine.dispose()

    assert set(threads.statuses().values()) == {"done"}


@ANYWHERE
@pytest.mark.parametrize("slots", [1, 2])
def test_a_job_that_runs_too_long_is_not_renewed_and_is_taken_back(
    workers: Workers, session: Session, slots: int
) -> None:
    """If all slots run such a job, the jobs behind it are not renewed either."""
    keys = workers.add(*"abcdefg")
    taken: set[int] = set()

    def reaped() -> bool:
        found = reap(session, Task, max_runtime=3 * SHORT)
        session.commit()
        taken.update(job.identity[0] for job in found.jobs)
        return bool(taken)

    def handle(task: Task) -> None:
        if not taken:
            until(reaped) if task.name == "a" else time.sleep(0.4)

    workers.drain(
        workers.queue(Task, handle),
        concurrency=slots,
        limit=7,
        max_runtime=SHORT,
        reap_every=None,
    )

    assert taken == set(keys if slots == 1 else keys[:1])
    assert set(workers.statuses().values()) == {"done"}  # those at their second attempt


def test_a_claim_that_a_renewal_finds_lost_is_told_once(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("a")
    told: list[tuple[str, str]] = []

    def handle(task: Task) -> None:
        if not told:
            found = reap(session, Task, lease=timedelta(microseconds=1))
            session.commit()
            assert found
            until(lambda: told)

    queue = workers.queue(Task, handle, lease=SHORT)
    listen(queue, "after_lost", lambda event: told.append((event.name, event.verb)))
    workers.drain(queue, owner="plain")

    assert told == [("after_lost", "renew")]
    assert caplog.text.count("can no longer be finished") == 1
    assert set(workers.statuses().values()) == {"done"}  # at its second attempt


def test_a_finish_beside_a_renewal_that_is_under_way_takes_it_for_no_loss(
    threads: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    threads.add("a")
    renewing, released = threading.Event(), threading.Event()
    renewals: list[object] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if is_renewal(" ".join(statement.split())):
            renewals.append(connection)

    def hold(connection: Any) -> None:
        if connection in renewals and not renewing.is_set():
            renewing.set()
            released.wait(0.3)  # the finish comes meanwhile

    with (
        heard(threads.engine, "before_cursor_execute", note),
        heard(threads.engine, "commit", hold),
    ):
        queue = threads.queue(Task, lambda task: until(renewing.is_set), lease=SHORT)
        threads.drain(queue, delete=True)

    assert threads.statuses() == {}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@ANYWHERE
@pytest.mark.parametrize("kind", ["passes", "unknown"])
def test_a_renewal_that_failed_is_tried_again_soon(
    workers: Workers, db_alias: str, kind: str
) -> None:
    workers.add("a")
    times: list[float] = []

    def first(text: str) -> bool:
        if is_renewal(text):
            times.append(time.monotonic())
        return is_renewal(text) and len(times) == 1

    def error() -> Exception:
        if kind == "passes":
            return OperationalError("UPDATE", {}, transient(db_alias))
        return RuntimeError("of the application")

    def handle(task: Task) -> None:
        before = workers.dates()
        until(lambda: workers.renewed(before))

    lease = timedelta(seconds=4)
    with failing(workers.engine, first, error):
        workers.drain(workers.queue(Task, handle, lease=lease), owner="w", reap_every=None)

    assert times[1] - times[0] < lease.total_seconds() / 3


@ANYWHERE
def test_a_claim_that_cannot_be_renewed_costs_no_other_its_renewal(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("c", id=424242)
    workers.add(*"abde")

    def handle(task: Task) -> None:
        if task.name == "c":
            for _ in range(2):
                wait_for_renewals(workers, "abde")

    error = IntegrityError("UPDATE", {}, Exception("refused"))
    with failing(workers.engine, lambda text: is_renewal(text) and "424242" in text, lambda: error):
        workers.drain(workers.queue(Task, handle, lease=SHORT), limit=5)

    assert set(workers.statuses().values()) == {"done"}
    assert len([text for text in caplog.messages if "renewal of 1 claims failed" in text]) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_row_that_somebody_locks_for_long_holds_up_no_other_renewal(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    keys = workers.add(*"abcd")
    lock = select(Task).where(Task.id.in_(keys[1:3])).with_for_update()

    def handle(task: Task) -> None:
        workers.note(task)
        if task.name == "a":
            workers.execute(update(Task).where(Task.id == keys[1]).values(owner="thief"))
            session.execute(lock)
            for _ in range(2):
                wait_for_renewals(workers, "ad")
            session.rollback()
            wait_for_renewals(workers, "acd")

    workers.drain(workers.queue(Task, handle, lease=SHORT), limit=4)

    assert workers.handled == ["a", "c", "d"]
    assert workers.statuses() == {"a": "done", "b": "claimed", "c": "done", "d": "done"}
    assert "its claim was lost" in caplog.text
    assert not [text for text in caplog.messages if "renewing" in text]
