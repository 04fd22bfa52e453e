"""Handlers of batches: which jobs a call gets, and what becomes of each of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.events import listen
from sa_jobqueue.worker import Cancel, Done, HandlerTimeout, Release, Retry, job_context
from tests.contract.worker.driver import SOON, Row, Workers
from tests.contract.worker.ledger import Entry, Invoice, entries
from tests.models import Task
from tests.support import statements_seen

pytestmark = pytest.mark.usefixtures("ledger_tables")

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

AT_ONCE = timedelta(0)

#: Of a job: the names in its batch; all jobs of a batch have one text.
Calls = list[str]


def names(jobs: list[Any]) -> str:
    return "".join(job.name for job in jobs)


def noting(calls: Calls, then: Callable[[list[Any]], Any] = lambda jobs: None) -> Any:
    """Return a handler that notes the names of its batches."""

    def handle(jobs: list[Any]) -> Any:
        assert type(jobs) is list
        calls.append(names(jobs))
        return then(jobs)

    return handle


def booking(calls: Calls, then: Callable[[list[Any]], Any] = lambda jobs: None) -> Any:
    """Return a transactional handler that books its invoices, too."""

    def handle(session: Session, invoices: list[Invoice]) -> Any:
        calls.append(names(invoices))
        session.add_all([Entry(name=invoice.name) for invoice in invoices])
        session.flush()
        return then(invoices)

    return handle


# Which jobs a call gets


def test_a_call_gets_up_to_so_many_jobs_of_one_claim_in_their_order(workers: Workers) -> None:
    workers.add(*"abcdefg")
    calls: Calls = []
    claims: list[int] = []

    queue = workers.queue(Task, noting(calls), batch=3)
    workers.drain(queue, on_claim=lambda claim: claims.append(len(claim)))

    assert calls == ["abc", "def", "g"]
    assert claims == [3, 3, 1]
    assert set(workers.rows().values()) == {("done", 1, None)}


@ANYWHERE
def test_a_batch_takes_one_place_of_the_worker(workers: Workers) -> None:
    """Two places for five jobs: two batches, which run at once."""
    workers.add(*"abcde")
    calls: Calls = []
    both = threading.Barrier(2, timeout=20)

    queue = workers.queue(Task, noting(calls, lambda jobs: both.wait() and None), batch=3)
    workers.drain(queue, concurrency=2)

    assert sorted(calls) == ["abc", "de"]


@ANYWHERE
def test_jobs_of_queues_with_and_without_batches_are_claimed_for_the_free_places(
    workers: Workers,
) -> None:
    workers.add(*"abcd")
    workers.add(*"xyz", entity=Invoice)
    calls: Calls = []
    claims: list[str] = []

    queues = [
        workers.queue(Task, noting(calls), batch=3),
        workers.queue(Invoice, lambda invoice: calls.append(invoice.name)),
    ]
    note_claim: Any = lambda claim: claims.append(names(claim))  # noqa: E731 - it is an argument
    workers.drain(queues, limit=2, on_claim=note_claim)

    assert sorted("".join(calls)) == [*"abcdxyz"]
    assert claims[0] == "abcd"
    assert all(len(claim) <= 2 for claim in claims if claim[:1] in "xyz")


@ANYWHERE
def test_of_a_key_that_is_served_one_at_a_time_a_batch_has_one_job_and_of_a_limited_key_several(
    workers: Workers,
) -> None:
    workers.add("a", "b", priority=1)
    workers.add("c", "d", "e", priority=2)
    calls: Calls = []

    serial = workers.queue(Task, noting(calls), serial_by=Task.priority, batch=9)
    workers.drain(serial)
    assert [sorted(call) for call in calls] == [["a", "c"], ["b", "d"], ["e"]]

    workers.execute(update(Task).values(status="unclaimed", attempts=0))
    calls.clear()
    limited = workers.queue(Task, noting(calls), limit_by={Task.priority: 2}, batch=9)
    workers.drain(limited)
    assert [sorted(call) for call in calls] == [["a", "b", "c", "d"], ["e"]]


# What becomes of each job


@dataclass(frozen=True)
class Case:
    """What the handler of a batch of a, b and c does at its first call; b has two attempts.

    Attributes:
        then: called with the batch.
        others: what becomes of a and of c.
        row: what becomes of b.
        calls: all batches, in their order.
        in_transaction: those of a transactional handler.
        traceback: the log has one.
    """

    then: Callable[[list[Any]], Any]
    others: Row
    row: Row
    calls: Calls
    in_transaction: Calls
    traceback: bool = False


def of_b(outcome: Any) -> Callable[[list[Any]], Any]:
    return lambda jobs: {job: outcome for job in jobs if job.name == "b"}


def raises(jobs: list[Any]) -> None:
    raise OSError("no route")


DONE = ("done", 1, None)

CASES = {
    "nothing": Case(lambda jobs: None, DONE, DONE, ["abc"], ["abc"]),
    "an empty mapping": Case(lambda jobs: {}, DONE, DONE, ["abc"], ["abc"]),
    "a value": Case(lambda jobs: "250 OK", DONE, DONE, ["abc"], ["abc"]),
    "Done of one": Case(of_b(Done({Invoice.total: 7})), DONE, DONE, ["abc"], ["abc"]),
    "Cancel of one": Case(
        of_b(Cancel("void")), DONE, ("cancelled", 1, "void"), ["abc"], ["abc", "ac"]
    ),
    "Retry of one": Case(
        of_b(Retry(AT_ONCE, "busy")), DONE, ("done", 2, "busy"), ["abc", "b"], ["abc", "ac", "b"]
    ),
    "Release of one": Case(of_b(Release()), DONE, DONE, ["abc", "b"], ["abc", "ac", "b"]),
    "an error of one": Case(
        of_b(ValueError("no luck")),
        DONE,
        ("done", 2, "ValueError: no luck"),
        ["abc", "b"],
        ["abc", "ac", "b"],
        traceback=True,
    ),
    "Cancel of all": Case(
        lambda jobs: Cancel("void"),
        ("cancelled", 1, "void"),
        ("cancelled", 1, "void"),
        ["abc"],
        ["abc"],
    ),
    # b has its last attempt, and so is alone.
    "raises": Case(
        raises,
        ("done", 2, "OSError: no route"),
        ("done", 2, "OSError: no route"),
        ["abc", "ac", "b"],
        ["abc", "ac", "b"],
        traceback=True,
    ),
    "an outcome of a stranger": Case(
        lambda jobs: {Invoice(name="x"): None},
        ("done", 2, "ArgumentError: a handler of batches returns a mapping whose keys are"),
        ("done", 2, "ArgumentError: a handler of batches returns a mapping whose keys are"),
        ["abc", "ac", "b"],
        ["abc", "ac", "b"],
        traceback=True,
    ),
}


@ANYWHERE
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_job_of_a_batch_has_the_outcome_that_the_handler_says(
    workers: Workers, case: Case, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")
    workers.add("a", entity=Invoice)
    workers.add("b", entity=Invoice, max_attempts=2)
    workers.add("c", entity=Invoice)
    calls: Calls = []
    told: list[str] = []
    started: list[int] = []

    def then(jobs: list[Any]) -> Any:
        return case.then(jobs) if len(calls) == 1 else None

    make = booking if transactional else noting
    options: dict[str, Any] = {"batch": 9, "backoff": lambda attempts: AT_ONCE}
    queue = workers.queue(Invoice, make(calls, then), transactional=transactional, **options)
    listen(queue, "after_start", lambda event: started.extend(job.key[0] for job in event.jobs))
    workers.drain(queue, on_outcome=lambda job, outcome: told.append(type(outcome).__name__))

    assert calls == (case.in_transaction if transactional else case.calls)
    rows = workers.rows(Invoice)
    for name, wanted in (("a", case.others), ("b", case.row), ("c", case.others)):
        assert rows[name][:2] == wanted[:2]
        assert str(rows[name][2]).startswith(str(wanted[2]))
    if transactional:
        assert entries(workers.plain) == sorted(n for n, row in rows.items() if row[0] == "done")
    # Whatever a transaction did in vain is one attempt.
    attempts = sum(map(len, case.calls))
    assert len(told) == len(started) == attempts
    assert len([text for text in caplog.messages if "attempt" in text]) == attempts
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == case.traceback


def test_done_values_of_one_job_are_its_own(workers: Workers) -> None:
    workers.add(*"abc", entity=Invoice)

    def number(jobs: list[Any]) -> dict[Any, Done]:
        totals = zip(jobs, (1, 2), strict=False)
        return {job: Done({Invoice.total: total}) for job, total in totals}

    queue = workers.queue(Invoice, booking([], number), transactional=True, batch=9)
    with statements_seen(workers.engine) as seen:
        workers.drain(queue)

    with Session(workers.plain) as session:
        found = {each.name: each.total for each in session.query(Invoice)}
    assert found == {"a": 1, "b": 2, "c": 0}
    selects = [text for text in seen if text.startswith("SELECT ledger_invoice.name")]
    assert len(selects) <= 1  # one read for all jobs


@pytest.mark.parametrize("transactional", [False, True])
def test_a_bad_job_fails_alone_once_two_batches_with_it_have_failed(
    workers: Workers, transactional: bool
) -> None:
    workers.add(*"abc", entity=Invoice, max_attempts=4)
    calls: Calls = []

    def refuse(jobs: list[Any]) -> None:
        if "b" in names(jobs):
            raise ValueError("bad")

    make = booking if transactional else noting
    options: dict[str, Any] = {"batch": 9, "backoff": lambda attempts: AT_ONCE}
    workers.drain(
        workers.queue(Invoice, make(calls, refuse), transactional=transactional, **options)
    )

    assert calls[:2] == ["abc", "abc"]
    assert sorted(calls[2:]) == ["a", "b", "b", "c"]
    rows = workers.rows(Invoice)
    assert rows["a"] == rows["c"] == ("done", 3, "ValueError: bad")
    assert rows["b"] == ("failed", 4, "ValueError: bad")


@ANYWHERE
def test_the_context_of_a_batch_tells_of_all_its_jobs(workers: Workers) -> None:
    workers.add("a")
    workers.add("b", attempts=1, run_at=None)
    seen: list[Any] = []

    def look(jobs: list[Task]) -> None:
        context = job_context()
        left = context.time_left
        assert left is not None
        seen.extend([context.attempt, context.owner, left < timedelta(minutes=1)])
        seen.append(context.asked_to_stop)
        workers.worker.stop()
        seen.append(context.asked_to_stop)

    queue = workers.queue(Task, look, batch=9, timeout=timedelta(minutes=1))
    workers.run(workers.make(queue, owner="w"))

    assert seen == [2, "w", True, False, True]


# Timeouts, stops, lost claims


@ANYWHERE
def test_a_timeout_is_an_attempt_at_each_job_of_its_batch(workers: Workers) -> None:
    workers.add(*"abc", max_attempts=1)
    released = threading.Event()
    queue = workers.queue(
        Task, lambda jobs: released.wait(2), batch=9, timeout=timedelta(milliseconds=100)
    )

    try:
        if workers.awaits:
            workers.drain(queue)
        else:
            with pytest.raises(HandlerTimeout, match="still runs after its timeout"):
                workers.drain(queue, grace=SOON)
    finally:
        released.set()

    rows = workers.rows()
    assert {row[:2] for row in rows.values()} == {("failed", 1)}
    assert all(str(row[2]).startswith("HandlerTimeout") for row in rows.values())


@ANYWHERE
@pytest.mark.parametrize("transactional", [False, True])
def test_a_stop_gives_back_the_batch_that_exceeds_the_grace_and_those_that_wait(
    workers: Workers, transactional: bool
) -> None:
    workers.add(*"abcdef", entity=Invoice)
    calls: Calls = []
    begun, released = threading.Event(), threading.Event()

    def overstay(jobs: list[Any]) -> None:
        begun.set()
        released.wait(4)

    make = booking if transactional else noting
    # Its transaction would hold SQLite's only write lock, which the release of the others needs.
    grace = timedelta(seconds=20) if transactional else SOON
    queue = workers.queue(Invoice, make(calls, overstay), transactional=transactional, batch=2)
    try:
        with workers.running(queue, limit=3, grace=grace, reap_every=None) as worker:
            assert begun.wait(20)
            worker.stop()
            if transactional:
                released.set()
    finally:
        released.set()

    assert calls == ["ab"]
    done = [("done", 1, None)] * 2 * transactional
    assert [*workers.rows(Invoice).values()] == done + [("unclaimed", 0, None)] * (6 - len(done))
    assert entries(workers.plain) == ([*"ab"] if transactional else [])


@pytest.mark.parametrize("transactional", [False, True])
def test_a_claim_that_is_lost_costs_no_other_job_of_its_batch(
    workers: Workers, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add(*"abc", entity=Invoice)
    calls: Calls = []
    told: list[str] = []

    def rob(*_: Any) -> None:
        workers.execute(update(Invoice).where(Invoice.name == "b").values(owner="thief"))

    make = booking if transactional else noting
    queue = workers.queue(
        Invoice,
        make(calls, (lambda jobs: None) if transactional else rob),
        transactional=transactional,
        batch=9,
    )
    workers.drain(
        queue,
        on_claim=rob if transactional else None,
        on_outcome=lambda job, outcome: told.append(job.name),
    )

    assert calls == ["ac" if transactional else "abc"]
    assert told == ["a", "c"]
    assert entries(workers.plain) == (["a", "c"] if transactional else [])
    assert workers.statuses(Invoice) == {"a": "done", "b": "claimed", "c": "done"}
    assert caplog.text.count("its claim was lost") == 1


# What is refused


def takes_two(job: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "handler", "words"),
    [
        ({"batch": 0}, print, "at least 1"),
        ({"batch": "9"}, print, "at least 1"),
        ({"batch": 9}, takes_two, r"calls it with \(jobs\)"),
        ({"batch": 9, "transactional": True}, lambda jobs: None, r"with \(session, jobs\)"),
    ],
)
def test_what_is_no_handler_of_batches_is_refused(
    options: dict[str, Any], handler: Any, words: str
) -> None:
    declare: Any = JobQueue(Task).handler

    with pytest.raises(ArgumentError, match=words):
        declare(**options)(handler)
