"""A job that kills its worker each time fails in the end, and holds up no other job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine, NullPool, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ConstantBackoff, JobQueue, retry
from sa_jobqueue.worker import Worker
from tests.models import Task, add_tasks
from tests.support import make_engine

from .support import Victim

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: A lease so long that no claim is reaped for its age.
LEASE = timedelta(hours=1)

AT_ONCE = ConstantBackoff(timedelta(0))


def work(url: str) -> None:
    """Drain the queue, or die of it."""

    def handler(task: Task) -> None:
        if task.name == "poison":
            os.kill(os.getpid(), signal.SIGKILL)

    queue = JobQueue(Task, lease=LEASE, backoff=AT_ONCE)
    Worker(make_engine(url, poolclass=NullPool), queue, handler, limit=2, drain=True).run()


def supervise(url: str, told: Connection) -> None:
    """Start workers one after the other, as a supervisor does; report how each ended."""
    while told.recv() == "go on":
        child = os.fork()  # from a process without threads
        if child == 0:
            work(url)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        told.send(os.waitstatus_to_exitcode(status))


@pytest.fixture
def supervisor(engine: Engine) -> Iterator[Connection]:
    with Victim(engine, supervise) as process:
        yield process.pipe


def ends_until(supervisor: Connection, engine: Engine, status: str) -> list[int]:
    """Start workers until the poison job has this status; return how they ended."""
    ends: list[int] = []
    deadline = time.monotonic() + 60
    while found(engine)["poison"][0] != status:
        assert time.monotonic() < deadline
        supervisor.send("go on")
        assert supervisor.poll(60)
        ends.append(supervisor.recv())
    return ends


def found(engine: Engine) -> dict[str, tuple[str, int]]:
    with Session(engine) as session:
        return {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}


def test_a_job_that_kills_its_worker_ends_in_failed_and_the_others_are_done(
    engine: Engine, supervisor: Connection
) -> None:
    with Session(engine) as session:
        add_tasks(session, "before", "poison", "beside", "behind")
        session.execute(update(Task).where(Task.name == "poison").values(max_attempts=2))
        session.commit()

        ends = ends_until(supervisor, engine, "failed")
        supervisor.send("go on")
        assert supervisor.recv() == 0

        assert ends.count(-signal.SIGKILL) == 2
        assert found(engine)["poison"] == ("failed", 2)
        assert {status for status, _ in found(engine).values()} == {"failed", "done"}
        (poison,) = session.scalars(select(Task).where(Task.status == "failed"))
        assert str(poison.last_error).startswith("reaped, dead owner: ")

        assert retry(session, poison) == [poison]
        session.commit()
        assert ends_until(supervisor, engine, "failed").count(-signal.SIGKILL) == 2
