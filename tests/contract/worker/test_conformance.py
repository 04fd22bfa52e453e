"""What Worker and AsyncWorker alike promise: what becomes of a job, and what the log says."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import ArgumentError, complete
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.worker import Cancel, Done, Failed, Release, Retry, job_context
from tests.contract.worker.driver import SOON, Row, Workers
from tests.contract.worker.faults import Picky, heard
from tests.models import Account, Email, Letter, Message, Render, Task, add_emails
from tests.support import statements_seen, until

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


# Handlers of the table below, which get the workers too


def returns(*outcomes: Any) -> Callable[[Workers, Any], Any]:
    """Return one of these at each attempt, the last one again and again."""
    return lambda workers, job: outcomes[min(job.attempts, len(outcomes)) - 1]


def raises(error: BaseException) -> Callable[[Workers, Any], Any]:
    def handle(workers: Workers, job: Any) -> None:
        raise error

    return handle


def sets_an_attribute(workers: Workers, job: Any) -> None:
    job.name = "changed"


def sets_an_attribute_and_raises(workers: Workers, job: Any) -> None:
    job.name = "changed"
    raise OSError("no route")


def commits_its_job(workers: Workers, job: Any) -> Any:
    """The commit expires the job, and the end of the session detaches it."""
    with Session(workers.plain) as own:
        own.add(job)
        own.commit()
    return Cancel("expired")


def is_robbed(workers: Workers, job: Any) -> None:
    workers.execute(update(type(job)).where(type(job).id == job.id).values(owner="thief"))


def yields(workers: Workers, job: Any) -> Iterator[None]:
    yield


async def yields_in_a_loop(workers: Workers, job: Any) -> AsyncIterator[None]:
    yield


async def must_be_awaited(workers: Workers, job: Any) -> None: ...


FAILED = r"failed, attempt \d of 2, after "
FINISH = r"cannot be finished, and its attempt fails, attempt \d of 2"


@dataclass(frozen=True)
class Case:
    """A job between two others that are done.

    Attributes:
        handler: called with the workers and the job.
        row: the row after: its status, its attempts, and words of its last_error.
        log: words of each record of level WARNING or higher; "" for no record.
        name: of the job; Picky refuses some.
    """

    handler: Callable[[Workers, Any], Any]
    row: Row
    log: str = ""
    entity: Any = Task
    name: str = "b"


CASES = {
    "None": Case(returns(None), ("done", 1, None)),
    "Done": Case(returns(Done()), ("done", 1, None)),
    "a value": Case(returns("250 OK"), ("done", 1, None), "'250 OK', which a worker does not un"),
    "Retry": Case(returns(Retry(SOON, "busy"), None), ("done", 2, "busy")),
    "Retry at the end": Case(returns(Retry(SOON, "busy")), ("failed", 2, "busy")),
    "Retry without RetryMixin's delay": Case(returns(Retry()), ("failed", 2, None)),
    "Cancel": Case(returns(Cancel("void")), ("cancelled", 1, "void")),
    "raises": Case(raises(ValueError("no luck")), ("failed", 2, "ValueError: no luck"), FAILED),
    "raises without text": Case(raises(KeyError()), ("failed", 2, "KeyError: "), FAILED),
    "raises long text": Case(raises(ValueError("ä" * 999)), ("failed", 2, "ä"), FAILED),
    "raises a null": Case(raises(ValueError("\x00 byte")), ("failed", 2, "ValueError: "), FAILED),
    "raises what a timeout raises": Case(
        raises(TimeoutError("of smtp")), ("failed", 2, "TimeoutError: of smtp"), FAILED
    ),
    "unprintable": Case(raises(Unprintable()), ("failed", 2, "Unprintable"), FAILED),
    "delay of 5": Case(returns(Retry(in_=5)), ("failed", 2, "takes a timedelta"), FAILED),  # type: ignore[arg-type]
    "delay below zero": Case(
        returns(Retry(timedelta(seconds=-1))), ("failed", 2, "from zero to ten years"), FAILED
    ),
    "delay too long": Case(
        returns(Retry(timedelta(days=4000))), ("failed", 2, "from zero to ten years"), FAILED
    ),
    "Release until it has no time zone": Case(
        returns(Release(datetime(2030, 1, 1))), ("failed", 2, "with a time zone"), FAILED
    ),
    "Release until 5": Case(returns(Release(5)), ("failed", 2, "takes a datetime"), FAILED),  # type: ignore[arg-type]
    "reason of 7": Case(returns(Cancel(7)), ("failed", 2, "a reason is a str"), FAILED),  # type: ignore[arg-type]
    "values of the worker's": Case(
        returns(Done({Task.status: "x"})), ("failed", 2, "complete() writes Task.status"), FAILED
    ),
    "values of an object": Case(
        returns(Done({Task.priority: object()})), ("failed", 2, "the finish was refused"), FINISH
    ),
    "values out of range": Case(
        returns(Done({Task.priority: 10**30})), ("failed", 2, "the finish was refused"), FINISH
    ),
    "values of 7": Case(returns(Done(7)), ("failed", 2, "values= takes"), FAILED),  # type: ignore[arg-type]
    "a branch": Case(returns(Done(then="x")), ("failed", 2, "names a branch"), FAILED),
    "a generator": Case(yields, ("failed", 2, "its work has not run"), FAILED),
    "an async generator": Case(yields_in_a_loop, ("failed", 2, "its work has not run"), FAILED),
    "a coroutine": Case(must_be_awaited, ("failed", 2, "its work has not run"), FAILED),
    "a change": Case(
        sets_an_attribute, ("done", 1, None), "has set name of Task.*transactional=True"
    ),
    "a change and raises": Case(
        sets_an_attribute_and_raises, ("failed", 2, "no route"), f"has set name of|{FAILED}"
    ),
    "an expired job": Case(commits_its_job, ("cancelled", 1, "expired")),
    "a lost claim": Case(is_robbed, ("claimed", 1, None), "its claim was lost|of Task lost"),
    "refused text": Case(
        raises(ValueError("→")), ("failed", 2, "ValueError: \\u2192"), FAILED, Picky
    ),
    "refused reason": Case(returns(Cancel("→")), ("cancelled", 1, "\\u2192"), "", Picky),
    "refused finish": Case(
        returns(None), ("failed", 2, "the finish was refused"), FINISH, Picky, "bad"
    ),
    "refused finish and failure": Case(
        returns(None), ("claimed", 1, None), "neither finished nor failed|stays claimed", Picky,
        "stuck",
    ),
}  # fmt: skip


#: Claimed and finished without the jobs beside them, too.
ALONE = ("None", "Retry", "raises", "a lost claim", "values out of range", "refused finish")


@ANYWHERE
@pytest.mark.usefixtures("picky")
@pytest.mark.parametrize(
    ("name", "limit"), [*((name, 3) for name in CASES), *((name, 1) for name in ALONE)]
)
def test_a_job_ends_as_its_handler_says_and_costs_no_other(
    workers: Workers, name: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its attempts is logged with its outcome, and told of."""
    case, outcomes = CASES[name], list[Any]()
    key = workers.add("a", case.name, "c", entity=case.entity, max_attempts=2)[1]
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")

    def handle(job: Any) -> Any:
        workers.note(job)
        return case.handler(workers, job) if job.name == case.name else None

    def note_outcome(job: Any, outcome: Any) -> None:
        if inspect(job).identity == (key,):
            outcomes.append(outcome)

    queue = workers.queue(case.entity, handle, timeout=timedelta(minutes=5))
    workers.drain(queue, limit=limit, on_outcome=note_outcome)

    rows = workers.rows(case.entity)
    status, attempts, error = rows[case.name]
    assert workers.handled.count(case.name) == case.row[1]
    assert workers.handled.count("a") == workers.handled.count("c") == 1
    assert rows["a"] == rows["c"] == ("done", 1, None)
    assert (status, attempts) == case.row[:2]
    assert error is None if case.row[2] is None else case.row[2] in str(error)
    told = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert bool(told) == bool(case.log)
    assert [text for text in told if not re.search(case.log, text)] == []
    records = [vars(each) for each in caplog.records if vars(each).get("job_key") == (key,)]
    assert {each["job_class"] for each in records} == {case.entity.__name__}
    assert {each["attempt"] for each in records} == set(range(1, attempts + 1))
    has_failed = FAILED in case.log or FINISH in case.log
    assert [isinstance(each, Failed) for each in outcomes] == (
        [] if status == "claimed" else [has_failed] * attempts
    )
    assert records[-1]["status"] == (None if status == "claimed" else status)


def test_a_handler_gives_its_job_back_and_no_attempt_is_counted(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    workers.add("at once", max_attempts=1)
    workers.add("tomorrow")

    def give_back_once(task: Task) -> Release | None:
        workers.note(task)
        until = tomorrow if task.name == "tomorrow" else None
        return None if workers.handled.count(task.name) > 1 else Release(until, reason="closed")

    workers.drain(Task, give_back_once)

    assert workers.handled.count("at once") == 2
    assert workers.rows() == {"at once": ("done", 1, None), "tomorrow": ("unclaimed", 0, None)}
    (run_at,) = session.scalars(select(Task.run_at).where(Task.name == "tomorrow"))
    assert abs(run_at.replace(tzinfo=UTC) - tomorrow) < timedelta(seconds=1)
    assert "is given back, attempt 1 of 1" in caplog.text
    assert ": closed" in caplog.text


@ANYWHERE
def test_a_class_without_attempts_gives_its_jobs_back_too(
    workers: Workers, session: Session
) -> None:
    add_emails(session, "a")
    outcomes = iter([Release(), None])

    workers.drain(Email, lambda email: next(outcomes))

    assert session.scalars(select(Email.status)).all() == ["done"]


@ANYWHERE
def test_the_finish_writes_own_columns_or_deletes_where_the_model_or_the_worker_says_so(
    workers: Workers, session: Session
) -> None:
    session.add_all([Message(sequence=1), Message(sequence=2)])
    session.commit()
    workers.add("a", "b", max_attempts=1)

    workers.drain(Message, lambda message: None)
    workers.drain(Task, lambda task: Done({Task.priority: 7}))
    assert session.scalars(select(Message)).all() == []
    assert workers.priorities() == {"a": 7, "b": 7}

    workers.execute(update(Task).values(status="unclaimed", attempts=0))
    workers.drain(
        Task,
        lambda task: Done({Task.priority: 8}) if task.name == "a" else None,
        limit=2,
        delete=True,
    )
    ((name, (status, _, error)),) = workers.rows().items()
    assert (name, status) == ("a", "failed")
    assert "keep the rows by delete=False" in str(error)


@ANYWHERE
def test_a_job_that_its_handler_moves_on_is_renewed_and_finished(
    workers: Workers, session: Session
) -> None:
    session.add_all([Render(), Render()])
    session.commit()
    date = select(Render.owner_date).where(Render.id % 2 == 1)

    def run_in(session: Session, render: Render) -> None:
        render.status = "running"

    def run(render: Render) -> None:
        moved = update(Render).where(Render.id == render.id).values(status="running")
        workers.execute(moved)
        with workers.plain.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
            claimed = own.scalar(date)
            until(lambda: own.scalar(date) != claimed)

    odd, even = (Render.id % 2 == rest for rest in (1, 0))
    lease = timedelta(milliseconds=600)
    workers.drain(
        [
            workers.queue(Render, run, odd, lease=lease),
            workers.queue(Render, run_in, even, transactional=True),
        ]
    )

    assert session.scalars(select(Render.status)).all() == ["done", "done"]


@ANYWHERE
def test_a_job_that_its_handler_finishes_itself_is_no_loss(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sa_jobqueue")
    workers.add("a", "b")
    told: list[str] = []

    def work_for_long(task: Task) -> None:
        with Session(workers.plain) as session, session.begin():
            session.execute(update(Task).where(Task.name == task.name).values(priority=7))
            complete(session, task)

    workers.drain(
        Task, work_for_long, limit=2, on_outcome=lambda task, outcome: told.append(task.name)
    )

    assert workers.rows() == {"a": ("done", 1, None), "b": ("done", 1, None)}
    assert told == ["a", "b"]
    assert caplog.text == ""


#: How a child leaves its handler, and the exit code of its process.
LEAVES = {
    "returns": (lambda: None, 0),
    "exits": (lambda: sys.exit(3), 3),
    "raises": (lambda: 1 / 0, 1),
}


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(("leave", "code"), LEAVES.values(), ids=LEAVES)
def test_a_child_that_a_handler_forks_ends_with_the_handler(
    workers: Workers, leave: Callable[[], Any], code: int, transactional: bool
) -> None:
    workers.add("a")
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            threading.Timer(5, os._exit, [99]).start()  # if it goes on with the worker's code
            leave()
            return
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    async def fork_in_loop(task: Task) -> None:
        fork()

    if transactional:
        queue = workers.queue(Task, lambda session, task: fork(), transactional=True)
    else:
        queue = workers.queue(Task, fork_in_loop if workers.awaits else lambda task: fork())
    workers.drain(queue)

    assert codes == [code]
    assert workers.rows() == {"a": ("done", 1, None)}


# The jobs that a worker takes


def test_a_drain_leaves_jobs_for_later_and_waits_for_retries(workers: Workers) -> None:
    workers.add("again")
    workers.add("later", run_at=datetime.now(UTC) + timedelta(hours=1))

    workers.drain(Task, lambda task: Retry(timedelta(seconds=0.3)) if task.attempts == 1 else None)

    assert {name: row[:2] for name, row in workers.rows().items()} == {
        "again": ("done", 2),
        "later": ("unclaimed", 0),
    }


@ANYWHERE
def test_several_queues_share_the_handlers_and_none_starves(
    workers: Workers, session: Session
) -> None:
    session.add_all(Email(recipient="email") for _ in range(30))
    session.commit()
    workers.add("b", "c", "d")

    def send(email: Email) -> None:
        workers.handled.append("email")

    workers.drain([workers.queue(Email, send), workers.queue(Task)], concurrency=2)

    assert Counter(workers.handled) == {"email": 30, "b": 1, "c": 1, "d": 1}
    assert workers.handled.index("b") < 20


@ANYWHERE
def test_jobs_that_only_another_version_knows_are_left_alone(workers: Workers) -> None:
    """Neither a queue nor a status without a handler here is claimed, reaped or waited for."""
    workers.add("ours", "of a new queue", "of a new status")
    workers.execute(update(Task).where(Task.name.like("%status")).values(status="checked"))
    queue = workers.queue(Task, None, Task.name.in_(["ours", "of a new status"]))

    with workers.running(queue):
        until(lambda: workers.statuses()["ours"] == "done")

    assert workers.rows() == {
        "ours": ("done", 1, None),
        "of a new queue": ("unclaimed", 0, None),
        "of a new status": ("checked", 0, None),
    }
    assert workers.handled == ["ours"]


# What handlers and callbacks get


@ANYWHERE
def test_jobs_are_detached_and_loader_options_load_what_handlers_read(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.add(Letter(copy_to=Account(name="x")))
    session.commit()
    seen: list[tuple[bool, str]] = []

    def handle(letter: Letter) -> None:
        assert letter.copy_to is not None
        seen.append((inspect(letter).detached, letter.copy_to.name))
        letter.account = Account(name="a")

    workers.drain(Letter, handle, options=[selectinload(Letter.copy_to)])

    assert seen == [(True, "x")]
    assert "has set account of Letter" in caplog.text


@ANYWHERE
def test_a_handler_knows_its_attempt_its_time_and_whether_to_stop(workers: Workers) -> None:
    workers.add("a")
    seen: list[Any] = []

    def handle(task: Task) -> Retry | None:
        context = job_context()
        seen.append((context.attempt, context.owner, context.time_left, context.asked_to_stop))
        if len(seen) < 2:
            return Retry(SOON)
        workers.worker.stop()
        assert job_context().asked_to_stop
        return None

    long = timedelta(minutes=5)
    workers.run(workers.make(workers.queue(Task, handle, timeout=long), owner="me"))

    assert [(attempt, owner, stop) for attempt, owner, _, stop in seen] == [
        (1, "me", False),
        (2, "me", False),
    ]
    assert all(timedelta(minutes=4) < left <= long for _, _, left, _ in seen)
    with pytest.raises(ArgumentError, match=r"call job_context\(\) in a handler"):
        job_context()


@ANYWHERE
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handler_sees_the_context_of_the_caller_and_none_of_another_handler(
    workers: Workers, concurrency: int
) -> None:
    workers.add(*"abc")
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[str] = []

    def handle(task: Task) -> None:
        seen.append(tenant.get())
        tenant.set(task.name)

    tenant.set("acme")
    workers.drain(Task, handle, concurrency=concurrency)

    assert seen == ["acme"] * 3


@ANYWHERE
@pytest.mark.parametrize("awaited", [False, True])
def test_callbacks_hear_of_claims_and_of_outcomes_after_their_commit(
    workers: Workers, awaited: bool
) -> None:
    workers.add(*"ab")
    told: list[Any] = []

    def claimed(claim: Any) -> None:
        told.append(len(claim))

    def ended(task: Task, outcome: Any) -> None:
        told.append((task.name, outcome, task.status, workers.statuses()[task.name]))

    def given(callback: Callable[..., None]) -> Any:
        return in_loop(callback) if awaited and workers.awaits else callback

    workers.drain(Task, limit=5, on_claim=given(claimed), on_outcome=given(ended))

    assert told == [2, ("a", None, "done", "done"), ("b", None, "done", "done")]


def in_loop(callback: Callable[..., None]) -> Callable[..., Any]:
    async def call(*given: Any) -> None:
        await asyncio.sleep(0)
        callback(*given)

    return call


@ANYWHERE
def test_a_queue_has_one_handler_and_a_worker_runs_once_at_a_time(workers: Workers) -> None:
    workers.add("a")
    queue = workers.queue(Task)

    with pytest.raises(ArgumentError, match="has a handler already"):
        workers.declare(queue)
    with pytest.raises(ArgumentError, match="has a handler already"):
        workers.declare(AsyncJobQueue(queue))
    workers.drain(queue)
    workers.add("b")
    workers.run(workers.worker)

    with workers.running(queue) as worker:
        workers.add("c")
        until(lambda: "c" in workers.handled)
        with pytest.raises(ArgumentError, match="runs already"):
            workers.run(worker)
    assert workers.handled == ["a", "b", "c"]


# Transactions


def test_a_turn_finishes_and_claims_in_one_transaction(workers: Workers) -> None:
    workers.add(*"abcdef")
    commits: list[object] = []

    with heard(workers.engine, "commit", lambda connection: commits.append(connection)):
        workers.drain(Task, limit=2, owner="w", reap_every=None)

    # Three turns with jobs, an empty turn, and a look whether all is done.
    assert len(commits) <= 5


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("delete", [True, False])
def test_a_turn_of_done_jobs_takes_one_statement(
    workers: Workers, session: Session, delete: bool
) -> None:
    add_emails(session, *"abcdef")

    with statements_seen(workers.engine) as seen:
        workers.drain(Email, lambda email: None, limit=2, delete=delete, owner="w")

    finishes = [text for text in seen if "DELETE FROM" in text or "status='done'" in text]
    assert len(finishes) == 3
    assert all("status='claimed'" in text for text in finishes), finishes


@ANYWHERE
def test_an_interval_is_a_pause_before_each_claim_that_no_wake_up_shortens(
    workers: Workers,
) -> None:
    workers.add("a", "b")

    def handle(task: Task) -> None:
        workers.note(task)
        if not workers.awaits:  # an AsyncWorker has no such method
            workers.worker.wake()

    began = datetime.now(UTC)
    workers.drain(Task, handle, interval=timedelta(seconds=0.2))

    assert datetime.now(UTC) - began >= timedelta(seconds=0.4)


# Several handlers at once


def test_handlers_run_at_once_and_none_waits_for_the_slowest(workers: Workers) -> None:
    workers.add(*"abcdefgh")
    met, others = threading.Barrier(2), threading.Semaphore(0)

    def handle(task: Task) -> None:
        if task.name in "ab":
            met.wait(20)
        if task.name != "a":
            others.release()
            return
        for _ in range(7):  # all the others are handled while this one runs
            assert others.acquire(timeout=20)

    workers.drain(Task, handle, concurrency=2)

    assert set(workers.statuses().values()) == {"done"}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handled_job_is_finished_while_another_runs(workers: Workers, concurrency: int) -> None:
    workers.add("a", "b")

    def handle(task: Task) -> None:
        if task.name == "b":
            until(lambda: workers.statuses()["a"] == "done")

    workers.drain(Task, handle, concurrency=concurrency, limit=2)

    assert set(workers.statuses().values()) == {"done"}


@ANYWHERE
@pytest.mark.parametrize(("limit", "least", "most"), [(5, 3, 5), (None, 4, 6)])
def test_a_worker_holds_no_more_jobs_than_its_limit(
    workers: Workers, limit: int | None, least: int, most: int
) -> None:
    """Without one it also claims the jobs of quick handlers that begin soon."""
    workers.add(*map(str, range(40)))
    held: list[int] = []

    def handle(task: Task) -> None:
        held.append(Counter(workers.statuses().values())["claimed"])

    workers.drain(Task, handle, concurrency=3, limit=limit)

    # Handled jobs are claimed until their finish is committed.
    assert least <= max(held) <= most + 3
    assert set(workers.statuses().values()) == {"done"}


# What ends a run


EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit]


@ANYWHERE
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("exit_", EXITS)
def test_a_handler_that_ends_the_process_has_had_its_attempt(
    workers: Workers, exit_: type[BaseException], concurrency: int
) -> None:
    workers.add("a", "b", "c", max_attempts=2)

    def handle(task: Task) -> None:
        if task.name == "b":
            if concurrency == 2:
                until(lambda: workers.statuses()["a"] == "done")
            raise exit_

    queue = workers.queue(Task, handle)
    with pytest.raises(exit_):
        workers.run(
            workers.make(queue, limit=3 if concurrency == 1 else 2, concurrency=concurrency)
        )

    rows = workers.rows()
    assert rows["a"] == ("done", 1, None)
    assert rows["b"] == ("unclaimed", 1, f"{exit_.__name__}: ")
    if concurrency == 1:
        assert rows["c"] == ("unclaimed", 0, None)
        with pytest.raises(exit_):
            workers.run(workers.make(workers.queue(Task, handle)))
        assert workers.rows()["b"][:2] == ("failed", 2)


@ANYWHERE
def test_a_cancelled_error_ends_the_run_of_a_worker_and_fails_an_attempt_of_an_async_worker(
    workers: Workers,
) -> None:
    workers.add("a", "b", max_attempts=1)

    def handle(task: Task) -> None:
        if task.name == "a":
            raise asyncio.CancelledError

    if workers.awaits:
        workers.drain(Task, handle)
    else:
        with pytest.raises(asyncio.CancelledError):
            workers.drain(Task, handle)

    assert workers.statuses() == {"a": "failed", "b": "done" if workers.awaits else "unclaimed"}


@ANYWHERE
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_callback_that_raises_ends_the_run_and_leaves_nothing_claimed(
    workers: Workers, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("a", "b")
    told = threading.Event()

    def handle(task: Task) -> None:
        if task.name == "b":
            assert told.wait(30)

    def tell(task: Task, outcome: object) -> None:
        told.set()
        raise LookupError("no terminal")

    with pytest.raises(LookupError, match="no terminal"):
        workers.drain(Task, handle, concurrency=concurrency, on_outcome=tell)

    assert workers.statuses() == {"a": "done", "b": "done" if concurrency == 2 else "unclaimed"}
    assert "not released" not in caplog.text
