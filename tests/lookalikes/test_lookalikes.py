"""Real look-alikes: what holds on them, holds; all else is refused before a job is claimed.

These tests run in the tox environment `lookalikes`, which has seekdb and Node.js.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import URL, Engine, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    JobQueue,
    Owner,
    UnsupportedDatabase,
    advisory_session,
    assume_locks,
    claim,
    named_lock,
)
from sa_jobqueue.worker import Worker
from tests.models import Email, add_emails
from tests.processes import Victim
from tests.running import running
from tests.servers.lookalikes import LOOK_ALIKES, look_alike
from tests.support import until

#: Longer than a busy machine takes for a turn.
LEASE = timedelta(seconds=5)


@pytest.fixture(scope="module", params=LOOK_ALIKES)
def url(request: pytest.FixtureRequest) -> Iterator[URL]:
    with look_alike(request.param) as url:
        yield url


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    """An engine that does not trust the look-alike."""
    engine = create_engine(url)
    table = Email.metadata.tables["email"]
    table.drop(engine, checkfirst=True)
    table.create(engine)
    yield engine
    engine.dispose()


def trusting(url: URL) -> Engine:
    """Make an engine that trusts the locks of its server."""
    engine = create_engine(url, isolation_level="READ COMMITTED")
    assume_locks(engine)
    return engine


def statuses(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Email.status)))


def test_it_is_refused_by_name_before_a_job_is_claimed(engine: Engine) -> None:
    with Session(engine) as session:
        add_emails(session, "anna")

        with pytest.raises(UnsupportedDatabase, match=r"says that it is (OceanBase|PGlite)"):
            claim(session, Email, owner="w")
    with pytest.raises(UnsupportedDatabase, match="doctor --locks"):
        Worker(engine, JobQueue(Email), print, drain=True).run()

    assert statuses(engine) == ["unclaimed"]


def test_what_does_not_hold_is_refused_before_a_job_is_claimed(engine: Engine, url: URL) -> None:
    trusted = trusting(url)
    with trusted.connect() as connection, Session(connection) as session:
        add_emails(session, "anna")
        in_order = JobQueue(Email, serial_by=Email.subject)
        refused: dict[str, list[Callable[[], object]]] = {
            "pymysql": [
                lambda: in_order.claim(session, owner="w"),
                lambda: claim(session, Email, owner="w", strategy="held"),
            ],
            "psycopg2": [
                lambda: named_lock(trusted, "report").acquire(),
                lambda: advisory_session(trusted).__enter__(),
                lambda: claim(session, Email, owner="w", strategy="advisory"),
            ],
        }

        for attempt in [Owner(trusted).open, *refused[trusted.driver]]:
            with pytest.raises(UnsupportedDatabase):
                attempt()
            session.rollback()

    assert statuses(engine) == ["unclaimed"]


def test_workers_handle_each_job_once(
    engine: Engine, url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    recipients = [str(number) for number in range(200)]
    handled: list[str] = []
    handlers = {Email: lambda email: handled.append(email.recipient)}
    with Session(engine) as session:
        add_emails(session, *recipients)

    with ExitStack() as workers:
        for _ in range(3):
            workers.enter_context(running(trusting(url), handlers, limit=5))
        until(lambda: set(statuses(engine)) == {"done"}, 60)

    assert sorted(handled, key=int) == recipients
    assert caplog.text.count("its claims are reaped only after their lease") == 3


def claim_twice(url: str, pipe: Connection) -> None:
    """Claim a job and commit, claim another, and wait to be killed."""
    engine = create_engine(url)
    assume_locks(engine)
    with Session(engine) as session:
        claim(session, Email, owner="victim")
        session.commit()
        claim(session, Email, owner="victim")
        pipe.send("claimed")
        pipe.recv()


def test_the_jobs_of_a_killed_claimer_come_back(engine: Engine, url: URL) -> None:
    with Session(engine) as session:
        add_emails(session, "anna", "ben", "cleo")
    with Victim(url, claim_twice) as victim:
        victim.hears()
    handled: list[str] = []
    handlers = {JobQueue(Email, lease=LEASE): lambda email: handled.append(email.recipient)}

    with running(trusting(url), handlers, reap_every=timedelta(seconds=1)):
        until(lambda: len(handled) == 3)

    assert sorted(handled) == ["anna", "ben", "cleo"]


def test_the_doctor_says_what_holds(engine: Engine, url: URL) -> None:
    with Session(engine) as session:
        add_emails(session, "anna")
    command = ("doctor", "--locks", "tests.models:Email", "--url", str(url))

    done = subprocess.run([sys.executable, "-m", "sa_jobqueue", *command], stdout=-1, text=True)

    assert "an Owner, cannot be had here" in done.stdout
    assert "row locks hold" in done.stdout or "all clients share one session" in done.stdout
    assert "0 errors, 1 warning" in done.stdout
