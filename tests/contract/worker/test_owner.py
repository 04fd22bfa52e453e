"""A worker is an owner for as long as it runs, and reaps the claims of owners that are dead."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner, OwnerState, claim, owner_state
from tests.contract.worker.driver import SOON, Workers
from tests.contract.worker.faults import heard, refused_by_network
from tests.models import Base, Task
from tests.support import SERVERS, cut_connections, make_engine, until, variables_hidden

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


def owners(workers: Workers) -> list[str]:
    with workers.plain.connect() as connection:
        return [str(name) for name in connection.scalars(select(Task.owner).order_by(Task.id))]


def claimed_by(workers: Workers, owner: Any, **options: Any) -> None:
    with Session(workers.plain) as session:
        claim(session, Task, owner=owner, **options)
        session.commit()


# The name


def test_a_worker_is_an_owner_for_as_long_as_it_runs(workers: Workers, session: Session) -> None:
    workers.add("a")
    seen: list[OwnerState] = []

    def handle(task: Task) -> None:
        with Session(workers.plain) as own:
            seen.append(owner_state(own, str(task.owner)))

    workers.drain(Task, handle)

    (name,) = owners(workers)
    assert name.split("~")[0].endswith(f"-{os.getpid()}")
    assert seen == [OwnerState.ALIVE]
    assert owner_state(session, name) is OwnerState.DEAD


@ANYWHERE
def test_an_owner_may_be_given(workers: Workers, session: Session) -> None:
    workers.add("a", "b", "c")

    with Owner(workers.plain, "mailer") as owner:
        for given in (owner, "plain", 7):
            queue = workers.queue(Task, lambda task: workers.worker.stop())
            workers.run(workers.make(queue, owner=given))
        assert owner_state(session, owner.name) is OwnerState.ALIVE
        assert owners(workers) == [owner.name, "plain", "7"]


@pytest.mark.only_on("mysql", "mariadb")
def test_a_server_that_knows_no_owners_gets_plain_names_and_one_line_in_the_log(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("a")

    with variables_hidden(workers.engine):
        workers.drain(Task)

    (name,) = owners(workers)
    assert "~" not in name
    (told,) = [text for text in caplog.messages if "only after their lease" in text]
    assert "does not tell which owners are alive, since it does not show" in told


# A lock that is lost


@pytest.fixture
def apart(request: pytest.FixtureRequest, fresh_database: URL) -> Iterator[Workers]:
    """Workers on a database of their own, whose connections may be cut."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    workers = Workers(request.param, engine)
    workers.engine = workers.engine_for(fresh_database)
    workers.add("a", "b", "c")
    yield workers
    workers.engine.dispose(close=not workers.awaits)
    engine.dispose()


BOTH = pytest.mark.parametrize("apart", ["threads", "asyncio"], indirect=True)


@BOTH
@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("away", [pytest.param(0, marks=pytest.mark.by_turns(*SERVERS)), 4])
def test_a_worker_whose_lock_was_lost_finishes_its_jobs_under_a_new_name(
    apart: Workers, db_alias: str, caplog: pytest.LogCaptureFixture, away: int
) -> None:
    """It waits for a server that is away when it takes the new lock."""
    left = list(range(away))
    cut = threading.Event()

    def connect(dialect: Any, *_: Any) -> None:
        if cut.is_set() and left:
            left.pop()
            raise refused_by_network(dialect.loaded_dbapi)

    def handle(task: Task) -> None:
        apart.note(task)
        if task.name == "a":
            cut.set()
            apart.plain.dispose()
            cut_connections(apart.plain.url, db_alias)
            until(lambda: "has lost its lock" in caplog.text)

    with heard(apart.engine, "do_connect", connect):
        # A reap between the cut and its notice would be right to take the claims.
        apart.drain(apart.queue(Task, handle), limit=2, reap_every=None)

    assert (apart.handled, left) == (["a", "b", "c"], [])
    first, second, third = owners(apart)
    assert first == second != third
    assert "~" in third
    assert set(apart.statuses().values()) == {"done"}


@BOTH
@pytest.mark.only_on(*SERVERS)
def test_handled_jobs_are_finished_before_a_new_lock_is_taken(
    apart: Workers, db_alias: str
) -> None:
    """A new lock may take minutes, and meanwhile others would reap them."""
    at_first: list[dict[str, str]] = []

    def lost() -> bool:
        with Session(apart.plain) as own:
            return owner_state(own, owners(apart)[0]) is OwnerState.DEAD

    def handle(task: Task) -> None:
        apart.note(task)
        if task.name == "a":
            apart.plain.dispose()
            cut_connections(apart.plain.url, db_alias)
            until(lost)
        elif not at_first:
            at_first.append(apart.statuses())

    apart.drain(apart.queue(Task, handle), reap_every=None)

    assert at_first == [{"a": "done", "b": "claimed", "c": "unclaimed"}]
    assert owners(apart)[0] != owners(apart)[1]
    assert set(apart.statuses().values()) == {"done"}


# Reaping


@ANYWHERE
def test_a_drain_takes_back_the_claims_of_the_dead_and_leaves_those_of_the_living(
    workers: Workers,
) -> None:
    workers.add("dead", "living", "unknown")
    with Owner(workers.plain) as living:
        with Owner(workers.plain) as dying:
            claimed_by(workers, dying)
        claimed_by(workers, living)
        claimed_by(workers, "plain")

        workers.drain(Task, reap_every=None)
        assert workers.handled == []
        workers.drain(Task)

    assert workers.handled == ["dead"]


def test_a_busy_worker_takes_back_claims_while_its_handlers_run(workers: Workers) -> None:
    workers.add("dead", "a", "b", "c")
    dying = Owner(workers.plain)
    dying.open()
    claimed_by(workers, dying)

    def handle(task: Task) -> None:
        workers.note(task)
        if task.name == "a":
            dying.close()
            until(lambda: workers.statuses()["dead"] == "unclaimed")

    workers.drain(workers.queue(Task, handle), reap_every=SOON)

    assert sorted(workers.handled) == ["a", "b", "c", "dead"]


class Tasks(JobQueue[Task]):
    """Resets what a handler had set, in the transaction of each reap, as docs/owners.md has it."""

    def reap(self, session: Any, **options: Any) -> Any:
        reaped = super().reap(session, **options)
        returned = [job.identity[0] for job in reaped.jobs if not job.failed]
        session.execute(update(Task).where(Task.id.in_(returned)).values(priority=0))
        return reaped


@ANYWHERE
def test_a_queue_may_write_in_the_transaction_of_its_workers_reap(workers: Workers) -> None:
    workers.add("a", priority=7)
    with Owner(workers.plain) as dying:
        claimed_by(workers, dying)
    queue = Tasks(Task)
    workers.declare(queue)

    workers.drain(queue)

    assert (workers.handled, workers.priorities()) == (["a"], {"a": 0})
