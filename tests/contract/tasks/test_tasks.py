"""Tasks: functions are enqueued with their arguments, called by workers, and their results kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.counts import Listed, list_jobs
from sa_jobqueue.errors import ArgumentError
from sa_jobqueue.tasks import TaskMixin, TaskQueue

# Inner: which values travel, without a table.
from sa_jobqueue.tasks.values import Value
from sa_jobqueue.testing import run_all
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.support import in_event_loop, make_async_engine
from tests.running import ASYNC_DRIVERS
from tests.support import statements_seen, with_empty_tables

from .models import (
    OF_EVERY_TYPE,
    SCHEDULES,
    Base,
    Parcel,
    Sent,
    Size,
    Task,
    awaited,
    decide,
    echo,
    fetch,
    log_in,
    names,
    pack,
    send_awaiting,
    send_invoice,
    send_once,
    tasks,
)


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)


def work(engine: Engine, queue: Any = tasks) -> None:
    Worker(engine, queue, drain=True).run()


def test_a_task_is_enqueued_in_the_callers_transaction_and_called_by_a_worker(
    engine: Engine, session: Session
) -> None:
    job = send_invoice.enqueue(session, 7, copy=True)
    session.commit()
    send_invoice.enqueue(session, 8)
    session.rollback()

    work(engine)

    (done,) = session.scalars(select(Task)).all()
    session.refresh(job)
    assert done is job
    assert (job.status, job.result, job.max_attempts) == ("done", "invoice 7 with a copy", 5)
    assert send_invoice.result(job) == "invoice 7 with a copy"
    assert send_invoice(7) == "invoice 7"


def test_every_type_travels(engine: Engine, session: Session) -> None:
    job = echo.enqueue(session, **OF_EVERY_TYPE)
    packed = pack.enqueue(session, 1, 2, 3, a=OF_EVERY_TYPE["price"] - 1)
    session.commit()

    work(engine)

    session.expire_all()
    assert (job.last_error, job.result) == (None, True)
    assert pack.result(packed) == Parcel(OF_EVERY_TYPE["price"] - 1, Size.LARGE)


def test_a_parameter_may_be_named_self(session: Session) -> None:
    assert names.enqueue(session, self=1, session=2).arguments == {"self": 1, "session": 2}


def test_options_are_those_of_the_job(session: Session) -> None:
    tomorrow = datetime(2030, 1, 1, tzinfo=UTC)
    urgent = send_invoice.with_options(priority=-1, run_at=tomorrow, max_attempts=2)

    job, usual = urgent.enqueue(session, 1), send_invoice.enqueue(session, 2)
    session.flush()

    assert (job.priority, job.run_at, job.max_attempts) == (-1, tomorrow, 2)
    assert (usual.priority, usual.max_attempts) == (0, 5)


def test_many_tasks_are_enqueued_at_once(engine: Engine, session: Session) -> None:
    tasks.queue.enqueue(session, [send_invoice.values(n) for n in range(20)])
    pack.enqueue(session, 1, 2, 3, a=OF_EVERY_TYPE["price"] - 1)
    session.commit()

    with statements_seen(engine) as seen:
        Worker(engine, tasks, limit=30, drain=True).run()

    *results, packed = session.scalars(select(Task.result).order_by(Task.id))
    assert results == [f"invoice {n}" for n in range(20)]
    assert packed == {"weight": "0.10", "size": "l"}
    assert sum("SET result=" in statement for statement in seen) < 10


def test_a_transactional_task_gets_a_session_and_its_effects_are_one_commit(
    engine: Engine, session: Session
) -> None:
    good = send_once.enqueue(session, "home")
    bad = send_once.with_options(max_attempts=1).enqueue(session, "nowhere")
    session.commit()

    work(engine)

    session.expire_all()
    assert session.scalars(select(Sent.address)).all() == ["home"]
    assert (good.status, good.result) == ("done", 4)
    assert (bad.status, bad.result) == ("failed", None)
    assert "LookupError: nowhere" in str(bad.last_error)


def test_a_task_may_return_another_outcome(engine: Engine, session: Session) -> None:
    jobs = {how: decide.enqueue(session, how) for how in ("retry", "cancel", "release")}
    session.commit()

    run_all(session, tasks)

    session.expire_all()
    assert [job.status for job in jobs.values()] == ["unclaimed", "cancelled", "unclaimed"]
    assert [job.attempts for job in jobs.values()] == [1, 1, 0]
    assert jobs["cancel"].last_error == "no longer needed"
    assert all(job.result is None for job in jobs.values())


@pytest.fixture
def async_engine(engine: Engine, db_url: URL, db_alias: str) -> AsyncEngine:
    return make_async_engine(db_url, ASYNC_DRIVERS[db_alias])


@in_event_loop
async def test_an_async_worker_awaits_tasks(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        page = fetch.enqueue(session, 3)
        sent = send_awaiting.enqueue(session, "home")
        await session.commit()

        await AsyncWorker(async_engine, awaited, drain=True).run()

        await session.refresh(page)
        await session.refresh(sent)
        assert (fetch.result(page), send_awaiting.result(sent)) == ("page 3", 4)
        assert (await session.scalars(select(Sent.address))).all() == ["home"]


def test_a_worker_of_the_other_kind_is_refused(engine: Engine) -> None:
    with pytest.raises(ArgumentError, match="has to be awaited: use an AsyncWorker"):
        Worker(engine, awaited)


# -- two versions of an application ----------------------------------------------


def version(*functions: Callable[..., Any]) -> TaskQueue[Any]:
    """Declare the tasks that a version of the application knows."""

    class Version(DeclarativeBase):
        pass

    class Task(TaskMixin, Version):
        __tablename__ = "shop_task"
        id: Mapped[int] = mapped_column(primary_key=True)

    queue = TaskQueue(Task)
    for function in functions:
        queue.task(name=function.__name__)(function)
    return queue


def old(n: int) -> str:
    return "old"


def new(n: int) -> str:
    return "new"


def changed(n: int, extra: int) -> str:
    return "changed"


def test_an_older_worker_leaves_a_new_task_alone(engine: Engine, session: Session) -> None:
    older, newer = version(old), version(old, new)
    newer.tasks["new"].enqueue(session, 1)
    newer.tasks["old"].enqueue(session, 1)
    session.commit()

    work(engine, older)

    left, done = session.scalars(select(Task).order_by(Task.name)).all()
    assert (left.name, left.status, left.attempts) == ("new", "unclaimed", 0)
    assert (done.status, done.result) == ("done", "old")
    session.rollback()
    work(engine, newer)
    assert (left.status, left.result) == ("done", "new")


def test_arguments_that_do_not_fit_any_more_fail_the_attempt_and_say_why(
    engine: Engine, session: Session
) -> None:
    older = version(old)
    older.tasks["old"].with_options(max_attempts=1).enqueue(session, 1)
    session.commit()
    newer = version()
    newer.task(name="old")(changed)

    work(engine, newer)

    (job,) = session.scalars(select(Task)).all()
    assert job.status == "failed"
    assert "missing a required argument: 'extra'" in str(job.last_error)
    assert "give a new parameter a default" in str(job.last_error)


# -- what people see ---------------------------------------------------------------


ODD: list[Any] = [None, [], 5, "x", {"first": None}, {"first": 1, "others": 5}]
ODD += [{"first": 1, "weights": [1]}, {"first": 1, "others": None}]


def test_arguments_of_any_form_fail_their_attempt_and_end_no_worker(
    engine: Engine, session: Session
) -> None:
    """Plain SQL may have inserted them, or a version with other parameters."""
    session.add_all(Task(name="pack", arguments=odd, max_attempts=1) for odd in ODD)
    last = send_invoice.enqueue(session, 7)
    session.commit()

    work(engine)

    session.expire_all()
    assert [job.status for job in session.scalars(select(Task)) if job != last] == ["failed"] * 8
    assert last.status == "done"


def test_a_name_that_differs_in_its_case_is_another_task(engine: Engine, session: Session) -> None:
    job = Task(name="Send_Invoice", arguments={"order_id": 7})
    session.add(job)
    session.commit()

    work(engine)

    session.expire_all()
    assert (job.status, job.attempts) == ("unclaimed", 0)


def test_the_log_and_lists_show_the_call_without_what_is_hidden(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")
    send_invoice.enqueue(session, 7, copy=True)
    log_in.enqueue(session, "anna", "secret")
    session.commit()

    work(engine)

    said = [record.getMessage() for record in caplog.records]
    assert any("send_invoice(7, copy=True) done, attempt 1 of 5" in text for text in said)
    assert any("log_in('anna', token=…) failed, attempt 1 of 1" in text for text in said)
    assert "secret" not in caplog.text
    (failed,) = list_jobs(session, tasks, Listed.FAILED, limit=5)
    assert failed.text == "log_in('anna', token=…)"
    assert list_jobs(session, version(), Listed.FAILED, limit=5) == []  # it does not know them


def test_long_values_are_shortened() -> None:
    shown = send_invoice.signature.show({"order_id": 10**60, "copy": True})
    assert shown == f"send_invoice(1{'0' * 38}…, copy=True)"


def test_a_schedule_enqueues_a_task(engine: Engine, session: Session) -> None:
    assert SCHEDULES.declare(session, [tasks]).added == ("clean_up",)
    (declared,) = SCHEDULES.all(session)
    SCHEDULES.run_now(session, "clean_up", tasks)
    session.commit()

    assert (declared.cron, declared.timezone) == ("30 2 * * *", "Europe/Berlin")
    work(engine)
    assert session.scalars(select(Task.status)).all() == ["done"]


# -- refusals ----------------------------------------------------------------------


def no_annotation(order) -> None: ...  # type: ignore[no-untyped-def]


def entity(order: Task) -> None: ...


def function(call: Callable[[], int]) -> None: ...


def entity_back(order: int) -> Task: ...  # type: ignore[empty-body]


def unknown_name(order: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def yields(order: int) -> Iterator[int]:
    yield order


def alone(*, order: int) -> None: ...


def send_invoice_again(order_id: int) -> None: ...


def nested() -> Callable[[], None]:
    def inside() -> None: ...

    return inside


NOT_IN_JSON: dict[str, tuple[Any, Any, str]] = {
    "nan": (float, float("nan"), "not JSON compliant"),
    "infinity_inside": (dict[str, list[float]], {"a": [float("inf")]}, "not JSON compliant"),
    "bits": (int, 2**63, "has more than 64 bits: take a Decimal"),
    "bits_of_any": (Any, {"a": -(2**70)}, "has more than 64 bits: take a Decimal"),
    "surrogate": (str, "\ud800", "could not be read back from JSON: Invalid JSON"),
    "pairs": (dict[tuple[int, int], int], {(1, 2): 3}, "could not be read back from JSON"),
    "sizes": (dict[Size | None, int], {None: 3}, "could not be read back from JSON"),
}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("name", NOT_IN_JSON)
def test_a_value_that_some_database_could_not_give_back_is_refused_when_it_is_enqueued(
    name: str,
) -> None:
    type_, value, words = NOT_IN_JSON[name]
    kept = Value(type_, "it")

    with pytest.raises(ArgumentError, match=f"^it.*{words}"):
        kept.dump(value)


@pytest.mark.only_on("sqlite")
def test_numbers_up_to_64_bits_and_long_texts_of_digits_are_kept() -> None:
    kept = Value(list[Any], "it")
    for value in ([2**63 - 1, -(2**63)], ["9" * 30], [0.1, 1e300]):
        assert kept.load(kept.dump(value)) == value


@pytest.mark.only_on("sqlite")
def test_no_error_tells_a_key_of_a_hidden_value() -> None:
    kept = Value(dict[str, int], "it", hidden=True)

    with pytest.raises(ArgumentError) as refused:
        kept.dump({"secret": "x"})

    assert "secret" not in str(refused.value)


def every_night(task: Any) -> Any:
    return tasks.every("0 1 * * *")(task)


def anyhow(task: Any) -> Any:
    """Return what makes the attributes of a job, past the type checker."""
    return task.values


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: tasks.task(no_annotation), "order of no_annotation has no annotation"),
        (lambda: tasks.task(entity), r"entity: order is a .*Task, which JSON cannot keep"),
        (lambda: tasks.task(function), "function: call is a .*Callable.* JSON cannot keep"),
        (lambda: tasks.task(entity_back), "the result of entity_back is a .* cannot keep"),
        (lambda: tasks.task(unknown_name), "'Unknown' is not defined.* outside of TYPE_CHECKING"),
        (lambda: tasks.task(lambda: None), "a function with a name.* write def"),
        (lambda: tasks.task(nested()), "nested.<locals>.inside is defined in another function"),
        (lambda: tasks.task(name="echo")(old), "two tasks have the name 'echo': .*echo and .*old"),
        (lambda: tasks.task(hide=["b"])(old), "hide= names parameters of old, which has no b"),
        (lambda: tasks.task(yields), "a call of yields only makes a generator"),
        (lambda: tasks.task(max_attempts=0)(old), "max_attempts= is a number, 1 or more, not 0"),
        (lambda: send_invoice.with_options(max_attempts=0), "1 or more, not 0"),
        (
            lambda: tasks.task(transactional=True)(alone),  # type: ignore[arg-type]  # a mistake
            r"a session before its arguments: write def alone\(session, ..\)",
        ),
        (lambda: every_night(old), "every.. schedules a task.* above @tasks.task"),
        (lambda: every_night(send_invoice), "missing a required argument"),
        (lambda: TaskQueue(Sent), "needs a mapped class with TaskMixin"),  # type: ignore[type-var]
        (lambda: anyhow(send_invoice)("7"), "order_id: Input should be a valid integer, not '7'"),
        (lambda: anyhow(send_invoice)(), "missing a required argument: 'order_id'"),
        (lambda: anyhow(log_in)("a", 7), r"log_in: token: Input should be a valid string$"),
        (lambda: echo.result(Task(name="old")), "is one of old, and not of echo"),
    ],
)
def test_what_makes_no_task_is_refused_with_the_way_out(
    declare: Callable[[], Any], words: str
) -> None:
    before = dict(tasks.tasks)

    with pytest.raises(ArgumentError, match=words):
        declare()

    assert tasks.tasks == before
