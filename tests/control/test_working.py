"""What a worker does with the control tables: pauses, stop requests, its row."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import OwnerState
from sa_jobqueue.control import pause, request_stop, resume

# Inner: a worker writes its row each ten seconds, which a test does not wait for.
from sa_jobqueue.worker import chores, job_context
from tests.running import Run, running, runs
from tests.support import statements_seen, until

from .conftest import Letter, Parcel, listed

BY_TURNS = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers look, and write their rows, ten times a second."""
    for name in ("LOOK_AT_CONTROL_EVERY", "TELL_EVERY"):
        monkeypatch.setattr(chores, name, timedelta(milliseconds=100))


@pytest.fixture(params=["Worker", "AsyncWorker"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    return runs(request.param, engine)


def add(session: Session, entity: Any, count: int) -> None:
    session.execute(insert(entity), [{"status": "unclaimed"}] * count)
    session.commit()


def commit(session: Session, verb: Callable[..., object], *given: Any) -> None:
    assert verb(session, *given)
    session.commit()


def count(session: Session, status: str) -> int:
    found = session.scalar(select(func.count()).where(Letter.status == status))
    session.rollback()
    return found or 0


# -- pauses -------------------------------------------------------------


def test_a_paused_queue_rests_until_it_is_resumed_and_others_go_on(
    run: Run, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add(session, Letter, 1)
    add(session, Parcel, 1)
    commit(session, pause, Letter)
    letter, parcel = threading.Event(), threading.Event()
    claimed: list[type[object]] = []

    caplog.set_level(logging.INFO, "sa_jobqueue.worker")
    with run(
        {Letter: lambda _: letter.set(), Parcel: lambda _: parcel.set()},
        on_claim=lambda claim: claimed.extend(map(type, claim)),
    ):
        assert parcel.wait(30)
        assert count(session, "unclaimed") == 1
        assert claimed == [Parcel]
        commit(session, resume, Letter)

        assert letter.wait(30)
    assert caplog.text.count("letter is paused: this worker claims none of its jobs") == 1
    assert caplog.text.count("letter is resumed") == 1


@BY_TURNS
def test_running_jobs_of_a_paused_queue_are_finished_and_no_claimed_job_starts(
    run: Run, session: Session
) -> None:
    add(session, Letter, 3000)
    handled: list[int] = []
    busy = threading.Event()

    def handle(letter: Letter) -> None:
        handled.append(letter.id)
        if len(handled) > 20:
            busy.set()
        time.sleep(0.01)

    with run({Letter: handle}, concurrency=4, limit=50):
        assert busy.wait(30)
        commit(session, pause, Letter)
        until(lambda: not count(session, "claimed"))
        before = len(handled)
        time.sleep(0.5)  # some looks at the control tables later

        assert len(handled) == before < 3000
        assert count(session, "done") == before  # those that ran were finished
        assert count(session, "unclaimed") == 3000 - before
        commit(session, resume, Letter)
        until(lambda: len(handled) > before)
    assert len(set(handled)) == len(handled)


# -- stop requests ------------------------------------------------------


@BY_TURNS
def test_a_job_that_is_asked_to_stop_hears_of_it_and_the_others_do_not(
    run: Run, session: Session
) -> None:
    add(session, Letter, 2)
    asked: dict[int, Callable[[], bool]] = {}
    end = threading.Event()

    def handle(letter: Letter) -> None:
        context = job_context()
        asked[letter.id] = lambda: context.asked_to_stop
        end.wait(30)

    with run({Letter: handle}, concurrency=2):
        until(lambda: len(asked) == 2)
        first, second = sorted(asked)
        commit(session, request_stop, session.get_one(Letter, first))

        until(lambda: asked[first]())
        assert not asked[second]()
        end.set()


# -- the worker's row ---------------------------------------------------


@BY_TURNS
def test_a_worker_is_listed_with_its_jobs_while_it_runs(run: Run, session: Session) -> None:
    add(session, Letter, 2)
    end = threading.Event()

    with run({Letter: lambda _: end.wait(30), Parcel: print}, concurrency=2):
        until(lambda: [worker.jobs for worker in listed(session)] == [2])
        (worker,) = listed(session)
        end.set()

    assert worker.queues == ("controlled_letter", "controlled_parcel")
    assert worker.state is OwnerState.ALIVE
    assert (worker.host, worker.pid) == (socket.gethostname(), os.getpid())
    assert worker.since <= worker.seen_at
    assert listed(session) == []


@BY_TURNS
@pytest.mark.parametrize("kind", ["AUTOCOMMIT", "bound to classes"])
def test_control_does_not_depend_on_the_applications_kind_of_sessions(
    engine: Engine, session: Session, kind: str
) -> None:
    bind: Any = engine.execution_options(isolation_level="AUTOCOMMIT")
    if kind != "AUTOCOMMIT":
        bind = sessionmaker(binds={Letter: engine})
    commit(session, pause, Letter)
    add(session, Letter, 1)
    done = threading.Event()

    with running(bind, {Letter: lambda _: done.set()}):
        until(lambda: listed(session))
        assert not done.wait(0.5)
        commit(session, resume, Letter)
        assert done.wait(30)

    assert listed(session) == []


@pytest.mark.only_on("sqlite")
def test_an_idle_worker_looks_in_one_statement_and_writes_nothing(
    engine: Engine, session: Session
) -> None:
    with running(engine, {Letter: print}):
        until(lambda: listed(session))
        with statements_seen(engine) as seen:
            until(lambda: sum("job_pauses" in statement for statement in seen) > 1)

    looks = {statement for statement in seen if "job_" in statement and "DELETE" not in statement}
    assert len(looks) == 1
    assert "UNION ALL" in looks.pop()


WITHOUT = """
from sqlalchemy import create_engine
import sa_jobqueue.doctor, sa_jobqueue.workflow
from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.models import Base, Email

engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
Worker(engine, JobQueue(Email), print, drain=True).run()
import sys
others = ("sa_jobqueue.control", "sa_jobqueue.groups", "sa_jobqueue.sch")
print([name for name in sys.modules if name.startswith(others)])
"""


@pytest.mark.only_on("sqlite")
def test_who_has_no_tables_beside_the_queue_does_not_load_their_modules() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=60
    )

    assert ran.stdout == "[]\n"
