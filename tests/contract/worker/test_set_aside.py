"""A job that can be neither finished nor failed holds up no other, and is not handled again."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    NullPool,
    create_engine,
    event,
    select,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.dialects.postgresql.database import PostgreSQL
from sa_jobqueue.worker.refusals import Refused
from sa_jobqueue.worker.set_aside import SetAside
from tests.contract.worker.faults import Picky, add_picky, picky_states
from tests.contract.worker.support import transient, work
from tests.support import SERVERS, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon, and wait for nothing for long."""
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=10))
    for module in ("transactions", "kept_connection"):
        monkeypatch.setattr(f"sa_jobqueue.worker.{module}.LOCK_WAIT", timedelta(milliseconds=200))
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.FIRST_PAUSE", timedelta(milliseconds=1))
    monkeypatch.setattr("sa_jobqueue.worker.refusals.UNDIVIDED", timedelta(milliseconds=1))
    monkeypatch.setattr("sa_jobqueue.worker.turns.UNDIVIDED", timedelta(milliseconds=1))


@pytest.mark.parametrize("limit", [1, 5])
def test_a_job_that_can_be_neither_finished_nor_failed_holds_up_no_other(
    engine: Engine, picky: Session, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    add_picky(picky, "a", "stuck", "b", "c")
    handled: Counter[str] = Counter()

    work(engine, JobQueue(Picky), lambda job: handled.update([job.name]), limit=limit)

    assert handled == Counter(["a", "stuck", "b", "c"])
    assert picky_states(picky) == {**dict.fromkeys("abc", ("done", 1)), "stuck": ("claimed", 1)}
    told = [text for text in caplog.messages if "neither finished nor failed" in text]
    assert len(told) == 1
    assert "find out what refuses or locks its row" in told[0]
    assert "stays claimed" in caplog.messages[-1]
    assert vars(caplog.records[-1])["job_key"] is not None
    assert vars(caplog.records[-1])["status"] is None  # the job's outcome is not written


def test_it_is_finished_as_soon_as_the_database_takes_it(engine: Engine, picky: Session) -> None:
    add_picky(picky, "stuck", "a", "b")
    handled: Counter[str] = Counter()
    ended: list[str] = []

    def handler(job: Picky) -> None:
        handled.update([job.name])
        if job.name == "a":
            picky.execute(update(Picky).where(Picky.name == "stuck").values(name="free"))
            picky.commit()

    work(
        engine,
        JobQueue(Picky),
        handler,
        limit=1,
        on_outcome=lambda job, outcome: ended.append(job.name),
    )

    assert handled == Counter(["stuck", "a", "b"])
    assert picky_states(picky) == dict.fromkeys(["free", "a", "b"], ("done", 1))
    assert sorted(ended) == ["a", "b", "stuck"]


def test_its_claim_is_renewed_while_the_worker_handles_other_jobs(
    engine: Engine, picky: Session
) -> None:
    add_picky(picky, "stuck", "a", "b")
    claimed = select(Picky.owner_date).where(Picky.name == "stuck")
    dates: list[Any] = []

    def renewed() -> bool:
        picky.rollback()
        dates.append(picky.scalars(claimed).one())
        return len(set(dates)) > 1

    def handler(job: Picky) -> None:
        if job.name != "stuck":
            dates.clear()
            until(renewed)

    work(engine, JobQueue(Picky, lease=timedelta(milliseconds=300)), handler, limit=1, owner="w")

    assert picky_states(picky)["stuck"] == ("claimed", 1)


def test_a_job_whose_row_others_lock_for_long_is_finished_later(
    engine: Engine, picky: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_picky(picky, "a", "locked", "b", "c")
    queue = JobQueue(Picky)
    complete = queue.complete
    handled: list[str] = []

    def wait_for_lock(session: Any, jobs: Any, **options: Any) -> None:
        if any(job.name == "locked" for job in jobs) and len(handled) < 4:
            raise OperationalError("UPDATE", {}, transient(db_alias))
        complete(session, jobs, **options)

    monkeypatch.setattr(queue, "complete", wait_for_lock)
    work(engine, queue, lambda job: handled.append(job.name), limit=2)

    assert handled == ["a", "locked", "b", "c"]
    assert set(picky_states(picky).values()) == {("done", 1)}


#: A worker keeps no connection of a NullPool: it sets its limit in each transaction.
POOLS: dict[str, dict[str, Any]] = {"kept": {}, "not kept": {"poolclass": NullPool}}


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("pool", POOLS)
def test_a_locked_row_holds_up_no_other_job(picky: Session, db_url: URL, pool: str) -> None:
    add_picky(picky, "a", "locked", "b", "c")
    ended: list[str] = []

    def handler(job: Picky) -> None:
        if job.name == "locked":
            picky.execute(select(Picky.id).where(Picky.name == "locked").with_for_update())
        if job.name == "c":
            picky.rollback()
            assert ended == ["a"]

    engine = create_engine(db_url, **POOLS[pool])
    work(
        engine,
        JobQueue(Picky),
        handler,
        limit=2,
        on_outcome=lambda job, outcome: ended.append(job.name),
    )
    engine.dispose()

    assert sorted(ended) == ["a", "b", "c", "locked"]
    assert set(picky_states(picky).values()) == {("done", 1)}


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(("options", "own"), [("", "0"), ("-c lock_timeout=7s", "7s")])
def test_the_limit_of_lock_waits_is_the_workers_alone(
    picky: Session, db_url: URL, options: str, own: str
) -> None:
    add_picky(picky, "a", "b", "c")
    limit = "SELECT current_setting('lock_timeout')"
    limits: list[str] = []
    connections: list[Any] = []
    engine = create_engine(db_url, connect_args={"options": options}, pool_size=3, max_overflow=0)

    @event.listens_for(engine, "commit")
    def look(connection: Connection) -> None:
        limits.append(connection.exec_driver_sql(limit).scalar_one())

    work(engine, JobQueue(Picky), lambda job: None, limit=1)
    event.remove(engine, "commit", look)

    assert set(limits) == {"0", "200ms"} if own == "0" else {own}
    with ExitStack() as stack:
        connections += (stack.enter_context(engine.connect()) for _ in range(3))
        assert [each.exec_driver_sql(limit).scalar_one() for each in connections] == [own] * 3
    engine.dispose()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("pooled", [True, False])
def test_behind_a_pooler_each_transaction_sets_its_own_limit(
    picky: Session, db_url: URL, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgreSQL, "through_pooler", lambda self, connection: pooled)
    add_picky(picky, "a", "b", "c")
    of_transactions: list[bool] = []
    engine = create_engine(db_url)

    @event.listens_for(engine, "before_cursor_execute")
    def look(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "set_config('lock_timeout'" in statement:
            of_transactions.append(parameters["of_transaction"])

    work(engine, JobQueue(Picky), lambda job: None, limit=1, owner="w")
    engine.dispose()

    assert of_transactions == ([True] * 3 if pooled else [False])


def test_jobs_that_are_set_aside_later_do_not_put_off_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, tries = [0.0], list[float]()
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.FIRST_PAUSE", timedelta(seconds=1))
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.job_fields", lambda _: {})
    monkeypatch.setattr("sa_jobqueue.worker.set_aside.job_name", lambda _: "Picky")
    aside = SetAside[Any](Mock(), Mock(), Mock())

    def attempt() -> list[Any]:
        tries.append(round(now[0]))
        return []

    monkeypatch.setattr(aside, "_try", attempt)

    for tenths in range(320):
        now[0] = tenths / 10
        if tenths % 9 == 0:
            aside.add([Refused(Mock(), ValueError("locked"))])
        aside.try_again()

    assert tries == [1, 3, 7, 15, 31]  # growing pauses


@pytest.mark.only_on(*SERVERS)
def test_many_locked_rows_cost_no_more_waits_than_one(
    picky: Session, db_url: URL, db_alias: str
) -> None:
    impatient = {"init_command": "SET innodb_lock_wait_timeout = 1"}
    engine = create_engine(db_url, connect_args={} if db_alias == "postgresql" else impatient)
    locked = [f"locked {number}" for number in range(8)]
    add_picky(picky, *locked, "free")
    keys = list(picky.scalars(select(Picky.id).where(Picky.name != "free")))
    picky.rollback()
    waits: list[str] = []

    def handler(job: Picky) -> None:
        if job.name == locked[-1]:
            for key in keys:  # InnoDB may read, and lock, the whole table for an IN
                picky.execute(select(Picky.id).where(Picky.id == key).with_for_update())
        if job.name == "free":
            picky.rollback()

    @event.listens_for(engine, "handle_error")
    def count(context: ExceptionContext) -> None:
        waits.append(str(context.original_exception))

    work(engine, JobQueue(Picky), handler, limit=8)
    engine.dispose()

    assert set(picky_states(picky).values()) == {("done", 1)}
    assert 1 <= len(waits) <= 2
