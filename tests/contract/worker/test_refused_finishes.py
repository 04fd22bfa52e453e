"""A job that can be neither finished nor failed holds up no other, and is not handled again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import URL, Connection, NullPool, create_engine, select, update
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tests.clock import Clock
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import Picky, heard
from tests.support import SERVERS, until

pytestmark = pytest.mark.usefixtures("picky")

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture
def impatient(workers: Workers, clock: Clock) -> Iterator[list[int]]:
    """Let seconds pass with each error; collect how many jobs were handled before it."""
    met: list[int] = []

    def meet(context: Any) -> None:
        met.append(len(workers.handled))
        clock.jump(3)

    with heard(workers.engine, "handle_error", meet):
        yield met


@ANYWHERE
def test_it_is_finished_as_soon_as_the_database_takes_it(workers: Workers, clock: Clock) -> None:
    workers.add("stuck", "a", "b", "c", entity=Picky)
    ended: list[str] = []

    def handle(job: Picky) -> None:
        workers.note(job)
        if job.name == "a":
            workers.execute(update(Picky).where(Picky.name == "stuck").values(name="free"))
            clock.jump(5)

    workers.drain(
        workers.queue(Picky, handle),
        owner="w",
        on_outcome=lambda job, outcome: ended.append(job.name),
    )

    assert workers.handled == ["stuck", "a", "b", "c"]
    assert workers.statuses(Picky) == dict.fromkeys(["free", "a", "b", "c"], "done")
    assert ended.index("stuck") < ended.index("c")


@ANYWHERE
def test_it_is_logged_once_and_tried_again_after_growing_pauses(
    workers: Workers, impatient: list[int], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("stuck", *map(str, range(60)), entity=Picky)

    def handle(job: Picky) -> None:
        workers.note(job)
        clock.jump(1)

    workers.drain(workers.queue(Picky, handle), owner="w")

    tries = sorted({number for number in impatient if 1 < number < 61})
    assert 2 <= len(tries) <= 6
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert all(later > earlier for earlier, later in pairwise(pauses))
    (told,) = [text for text in caplog.messages if "neither finished nor failed" in text]
    assert "find out what refuses or locks its row" in told
    assert "stays claimed" in caplog.messages[-1]


@ANYWHERE
def test_its_claim_is_renewed_while_the_worker_handles_other_jobs(workers: Workers) -> None:
    workers.add("stuck", "a", "b", entity=Picky)

    def handle(job: Picky) -> None:
        if job.name != "stuck":
            before = workers.dates(Picky)
            until(lambda: "stuck" in workers.renewed(before, Picky))

    queue = workers.queue(Picky, handle, lease=timedelta(milliseconds=300))
    workers.drain(queue, owner="w", reap_every=None)

    assert workers.statuses(Picky) == {"stuck": "claimed", "a": "done", "b": "done"}


# Locked rows


#: A limit of the user's own, in the options of a synchronous driver and of an asynchronous one.
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "postgresql": (
        {"options": "-c lock_timeout=200ms"},
        {"server_settings": {"lock_timeout": "200ms"}},
    ),
    "mysql": ({"init_command": "SET innodb_lock_wait_timeout = 1"},) * 2,
}
LIMITS["mariadb"] = LIMITS["mysql"]


@pytest.mark.only_on(*SERVERS)
def test_rows_that_others_lock_hold_up_no_other_job_and_cost_no_more_waits_than_one(
    workers: Workers, session: Session, db_alias: str, clock: Clock
) -> None:
    workers.engine = engine_with(workers, LIMITS[db_alias][workers.awaits])
    names = ["locked 1", "locked 2", "locked 3"]
    keys = workers.add("a", *names, "b", "c", entity=Picky)[1:4]
    ended: list[str] = []
    waits: list[str] = []

    def handle(job: Picky) -> None:
        workers.note(job)
        if job.name == names[-1]:
            for key in keys:  # InnoDB may read, and lock, the whole table for an IN
                session.execute(select(Picky.id).where(Picky.id == key).with_for_update())
        if job.name == "c":
            assert ended == ["a", "b"]
            session.rollback()

    def meet(context: Any) -> None:
        waits.append(str(context.original_exception))
        clock.jump(3)

    with heard(workers.engine, "handle_error", meet):
        workers.drain(
            workers.queue(Picky, handle),
            limit=5,
            owner="w",
            reap_every=None,
            on_outcome=lambda job, outcome: ended.append(job.name),
        )
    workers.engine.dispose(close=not workers.awaits)

    assert workers.handled == ["a", *names, "b", "c"]
    assert sorted(ended) == sorted(workers.handled)
    assert set(workers.statuses(Picky).values()) == {"done"}
    assert 1 <= len(waits) <= 2


@pytest.mark.only_on("sqlite")
def test_a_file_that_others_keep_locked_holds_up_its_jobs_and_ends_no_worker(
    workers: Workers, clock: Clock
) -> None:
    workers.engine = engine_with(workers, {"timeout": 0})
    workers.add("a", "b", entity=Picky)
    other = workers.plain.raw_connection()
    waits: list[str] = []

    def handle(job: Picky) -> None:
        workers.note(job)
        if job.name == "a":
            other.cursor().execute("BEGIN IMMEDIATE")

    def meet(context: Any) -> None:
        waits.append(str(context.original_exception))
        clock.jump(3)
        if len(waits) == 5:
            other.rollback()

    with heard(workers.engine, "handle_error", meet):
        workers.drain(workers.queue(Picky, handle), limit=1, owner="w", reap_every=None)
    workers.engine.dispose(close=not workers.awaits)
    other.close()

    assert workers.handled == ["a", "b"]
    assert set(workers.statuses(Picky).values()) == {"done"}
    assert len(waits) >= 5


def engine_with(workers: Workers, connect: dict[str, Any]) -> Any:
    """Create an engine for workers with these arguments for their driver alone."""
    url = workers.engine.url
    if workers.awaits:
        return create_async_engine(url, connect_args=connect).sync_engine
    return create_engine(url, connect_args=connect)


#: A worker keeps no connection of a NullPool: it sets its limit in each transaction.
@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("pool", [{"pool_size": 3, "max_overflow": 0}, {"poolclass": NullPool}])
@pytest.mark.parametrize(("options", "own"), [("", "0"), ("-c lock_timeout=7s", "7s")])
def test_the_limit_of_lock_waits_is_the_workers_alone_and_yours_counts(
    threads: Workers, db_url: URL, options: str, own: str, pool: dict[str, Any]
) -> None:
    threads.add("a", "b", "c", entity=Picky)
    limit = "SELECT current_setting('lock_timeout')"
    limits: set[str] = set()
    engine = create_engine(db_url, connect_args={"options": options}, **pool)

    def look(connection: Connection) -> None:
        limits.add(connection.exec_driver_sql(limit).scalar_one())

    with heard(engine, "commit", look):
        threads.drain(Picky, bind=engine, limit=1)

    assert limits == ({"0", "2s"} if own == "0" else {own})
    with ExitStack() as stack:
        connections = [stack.enter_context(engine.connect()) for _ in range(3)]
        assert [each.exec_driver_sql(limit).scalar_one() for each in connections] == [own] * 3
    engine.dispose()
