"""A worker survives faults in a row, at any moment of its turns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.contract.worker.survival import FEW, MANY, Survival
from tests.models import Task
from tests.support import make_engine


@pytest.mark.timeout(600)
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_worker_survives_faults_in_a_row_and_handles_each_job_once(
    engine: Engine,
    session: Session,
    db_url: URL,
    full: bool,
    autocommit: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(milliseconds=2))
    connected = make_engine(db_url)
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    own = connected.execution_options(**level)
    survival = Survival(connected, db_url, faults=MANY if full else FEW)
    survival.add_jobs(session)
    worker = survival.worker = Worker(
        own,
        JobQueue(Task),
        survival.handle,
        owner="w",
        limit=3,
        poll=timedelta(milliseconds=20),
        reap_every=None,
    )

    with survival.faults:
        worker.run()

    connected.dispose()
    survival.check(session, every_kind=full)
