"""The jobs of workers that are killed, or that kill their workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ConstantBackoff, JobQueue, retry
from sa_jobqueue.worker import Worker
from tests.models import Email, Task, add_emails, add_tasks
from tests.processes import Victim
from tests.support import make_engine, until

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: A lease so long that no claim is reaped for its age.
LEASE = timedelta(hours=1)
REAP_EVERY = timedelta(seconds=1)

Start = Callable[[int], Victim]


def work(url: str, limit: int, pipe: Connection) -> None:
    """Work on emails; report the first job, and wait for permission to go on."""
    engine = make_engine(url)
    first = True

    def handler(email: Email) -> None:
        nonlocal first
        if first:
            first = False
            pipe.send(email.recipient)
            pipe.recv()

    queue = JobQueue(Email, lease=LEASE)
    poll = timedelta(milliseconds=100)
    Worker(engine, queue, handler, limit=limit, poll=poll, reap_every=REAP_EVERY).run()


@pytest.fixture
def start(engine: Engine) -> Iterator[Start]:
    """Start workers, which are killed when the test ends."""
    with ExitStack() as started:
        yield lambda limit: started.enter_context(Victim(engine.url, work, limit))


def jobs(engine: Engine, status: str) -> int:
    with Session(engine) as session:
        counted = select(func.count()).select_from(Email).where(Email.status == status)
        return session.scalar(counted) or 0


def add_jobs(engine: Engine, count: int) -> None:
    with Session(engine) as session:
        add_emails(session, *map(str, range(count)))


def test_a_killed_workers_jobs_are_back_and_finished_within_seconds(
    engine: Engine, start: Start
) -> None:
    """One of four workers is killed, with 100 claims and a lease of an hour."""
    add_jobs(engine, 104)
    others = [start(1) for _ in range(3)]
    for other in others:
        other.hears()
    victim = start(101)
    victim.hears()
    for other in others:
        other.pipe.send("go on")
    until(lambda: (jobs(engine, "done"), jobs(engine, "claimed")) == (3, 101))
    killed = time.monotonic()

    victim.signal(signal.SIGKILL)

    until(lambda: jobs(engine, "done") == 104)
    assert time.monotonic() - killed < REAP_EVERY.total_seconds() * 1.2 + 5


# -- jobs that kill their workers ---------------------------------------

AT_ONCE = ConstantBackoff(timedelta(0))


def drain(url: str, _: Connection) -> None:
    """Drain the queue, or die of it."""

    def handler(task: Task) -> None:
        if task.name == "poison":
            os.kill(os.getpid(), signal.SIGKILL)

    queue = JobQueue(Task, lease=LEASE, backoff=AT_ONCE)
    Worker(make_engine(url), queue, handler, limit=2, drain=True).run()


def end_of_worker(engine: Engine) -> int | None:
    """Start a worker, as a supervisor does; return how it ended."""
    with Victim(engine.url, drain) as worker:
        worker.process.join(60)
        return worker.process.exitcode


def killed_until_failed(engine: Engine) -> int:
    """Start workers until the poison job has failed; return how many were killed."""
    ends: list[int | None] = []

    def failed() -> bool:
        ends.append(end_of_worker(engine))
        return found(engine)["poison"][0] == "failed"

    until(failed, 60)
    return ends.count(-signal.SIGKILL)


def found(engine: Engine) -> dict[str, tuple[str, int]]:
    with Session(engine) as session:
        return {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}


def test_a_job_that_kills_its_worker_ends_in_failed_and_the_others_are_done(engine: Engine) -> None:
    with Session(engine) as session:
        add_tasks(session, "before", "poison", "beside", "behind")
        session.execute(update(Task).where(Task.name == "poison").values(max_attempts=2))
        session.commit()

        assert killed_until_failed(engine) == 2
        assert end_of_worker(engine) == 0

        assert found(engine)["poison"] == ("failed", 2)
        assert {status for status, _ in found(engine).values()} == {"failed", "done"}
        (poison,) = session.scalars(select(Task).where(Task.status == "failed"))
        assert str(poison.last_error).startswith("reaped, dead owner: ")

        assert retry(session, poison) == [poison]
        session.commit()
        assert killed_until_failed(engine) == 2
