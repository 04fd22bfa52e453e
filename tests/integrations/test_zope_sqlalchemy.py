"""zope.sqlalchemy commits a session only if it takes it for written to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel,
    claim,
    complete,
    count_by_status,
    prune,
    reprioritize,
    retry,
    stats,
)
from sa_jobqueue.worker import Worker
from tests.models import Task, add_tasks

transaction = pytest.importorskip("transaction")
zope_sqlalchemy = pytest.importorskip("zope.sqlalchemy")

Sessions = scoped_session[Session]


@pytest.fixture
def sessions(engine: Engine) -> Iterator[Sessions]:
    """Pyramid's way: a scoped session that joins the transaction of the thread."""
    made = scoped_session(sessionmaker(engine))
    zope_sqlalchemy.register(made)
    yield made
    transaction.abort()
    made.remove()


def committed(engine: Engine) -> Any:
    """Commit by Zope's manager; return the status of the only task, as others see it."""
    transaction.commit()
    with engine.connect() as connection:
        return connection.execute(select(Task.status)).scalar()


def test_what_verbs_write_is_committed(sessions: Sessions, engine: Engine) -> None:
    with Session(engine) as session:
        add_tasks(session, "first")

    claimed = claim(sessions, Task, owner="w", limit=1)
    assert committed(engine) == "claimed"

    complete(sessions, claimed.fences)
    assert committed(engine) == "done"
    retry(sessions, sessions.scalars(select(Task)).one())
    assert committed(engine) == "unclaimed"
    reprioritize(sessions, sessions.scalars(select(Task)).one(), 3)
    transaction.commit()
    assert sessions.scalars(select(Task.priority)).one() == 3
    cancel(sessions, sessions.scalars(select(Task)).one())
    assert committed(engine) == "cancelled"
    prune(sessions, Task, older_than=timedelta(0), statuses=["cancelled"])
    assert committed(engine) is None


def test_reading_verbs_do_not_mark_the_session(sessions: Sessions, engine: Engine) -> None:
    """Zope refuses writes in a session that was registered as read-only."""
    with Session(engine) as session:
        add_tasks(session, "first")
    read_only = sessionmaker(engine)
    zope_sqlalchemy.register(read_only, initial_state="readonly")
    with read_only() as session:
        assert count_by_status(session, Task)["unclaimed"] == 1
        stats(session, Task)
        with pytest.raises(AssertionError, match="read only"):
            claim(session, Task, owner="w")
        transaction.abort()


def test_a_worker_refuses_sessions_that_the_transaction_manager_commits(engine: Engine) -> None:
    made = sessionmaker(engine)
    zope_sqlalchemy.register(made)

    with pytest.raises(ArgumentError, match="committed using the transaction manager"):
        Worker(made, JobQueue(Task), print)
