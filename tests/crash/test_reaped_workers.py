"""The jobs of workers that are killed or stopped."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, reap
from sa_jobqueue.worker import Worker
from tests.models import Email, add_emails
from tests.support import make_engine, until

from .support import Victim

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: A lease so long that no claim is reaped for its age.
LEASE = timedelta(hours=1)
REAP_EVERY = timedelta(seconds=1)

MOMENT = timedelta(microseconds=1)
FORCE = timedelta(0)


Start = Callable[[int], Victim]


class Telling(logging.Handler):
    """Send log lines through a pipe."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self.pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self.pipe.send(record.getMessage())


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

    logging.getLogger("sa_jobqueue.worker").addHandler(Telling(pipe))
    queue = JobQueue(Email, lease=LEASE)
    poll = timedelta(milliseconds=100)
    Worker(engine, queue, handler, limit=limit, poll=poll, reap_every=REAP_EVERY).run()


@pytest.fixture
def start(engine: Engine) -> Iterator[Start]:
    """Start workers, which are killed when the test ends."""
    with ExitStack() as started:
        yield lambda limit: started.enter_context(Victim(engine, work, limit))


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


def test_a_stopped_worker_keeps_its_claims_until_it_is_dead(engine: Engine, start: Start) -> None:
    add_jobs(engine, 3)
    victim = start(3)
    victim.hears()
    victim.stand_still()

    with Session(engine) as session:
        assert not reap(session, Email, lease=MOMENT)
        session.rollback()
        victim.signal(signal.SIGKILL)

        def taken_back() -> int:
            found = len(reap(session, Email, lease=LEASE))
            session.commit()
            return found

        until(taken_back)
    assert jobs(engine, "unclaimed") == 3


def test_a_worker_reaped_by_force_finds_its_claims_lost_and_changes_nothing(
    engine: Engine, start: Start
) -> None:
    add_jobs(engine, 3)
    victim = start(3)
    victim.hears()
    victim.stand_still()
    with Session(engine) as session:
        assert len(reap(session, Email, max_runtime=FORCE)) == 3
        claim(session, Email, owner="other", limit=3)
        session.commit()
        before = rows(session)

        victim.signal(signal.SIGCONT)
        victim.pipe.send("go on")

        said = str(victim.hears())
        assert "its claim was lost" in said
        assert rows(session) == before


def rows(session: Session) -> list[tuple[object, ...]]:
    session.rollback()
    found = select(Email.status, Email.owner, Email.owner_date).order_by(Email.id)
    return [tuple(row) for row in session.execute(found)]
