"""A queue that listens to a channel of the application's own: its trigger wakes workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, text
from sqlalchemy.pool import NullPool

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.workflow import Workflow
from tests.contract.asyncio.support import DRIVERS_OF_POSTGRESQL
from tests.contract.wakeups.support import idle
from tests.contract.worker.driver import Workers
from tests.docs.markdown import code_blocks, page
from tests.models import Base, Email
from tests.running import in_thread
from tests.support import make_engine, until

PAGE = "docs/worker.md"

#: As long and as odd as PostgreSQL allows.
ODD = 'Odd "%s" %% \' \\ ' + "ä" * 23

Add = Callable[[str], None]


@pytest.fixture
def workers(request: pytest.FixtureRequest, fresh_database: URL) -> Iterator[Workers]:
    """Workers on a database of their own, whose table may have a trigger."""
    plain = make_engine(fresh_database, poolclass=NullPool)
    Base.metadata.create_all(plain)
    workers = Workers(getattr(request, "param", "threads"), plain)
    yield workers
    if workers.awaits:
        workers.engine.dispose(close=False)


@pytest.fixture
def add(workers: Workers) -> Add:
    """Give a function that commits a job by plain SQL, of which no verb of this process tells."""

    def add(recipient: str) -> None:
        with workers.plain.begin() as connection:
            row = {"recipient": recipient}
            connection.execute(text("INSERT INTO email (recipient) VALUES (:recipient)"), row)

    return add


def run(workers: Workers, *statements: str) -> None:
    with workers.plain.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))


def note(workers: Workers) -> Callable[[Email], None]:
    return lambda email: workers.handled.append(email.recipient)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("workers", ["threads", *DRIVERS_OF_POSTGRESQL], indirect=True)
def test_the_trigger_of_the_page_wakes_a_worker_for_new_jobs_and_for_those_given_back(
    workers: Workers, add: Add
) -> None:
    (trigger,) = code_blocks(page(PAGE), "postgresql")
    run(workers, trigger)
    queue = workers.queue(Email, note(workers), listen="new_email")

    with idle(workers, queue):
        add("a")
        until(lambda: workers.handled == ["a"])
        add("b")
        until(lambda: workers.handled == ["a", "b"])
        run(workers, "UPDATE email SET status = 'unclaimed' WHERE recipient = 'a'")
        until(lambda: workers.handled == ["a", "b", "a"])


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("workers", ["threads", *DRIVERS_OF_POSTGRESQL], indirect=True)
@pytest.mark.parametrize("channel", ["Capitals", ODD])
def test_a_channel_is_heard_by_the_name_that_was_written(
    workers: Workers, add: Add, channel: str
) -> None:
    queue = workers.queue(Email, note(workers), listen=channel)
    added: list[str] = []

    def is_left() -> bool:
        added.append(f"{len(added)}")
        add(added[-1])
        time.sleep(0.5)
        return added[-1] not in workers.handled

    with idle(workers, queue):
        # A worker that listens does not look. It looks once when it has begun to listen.
        until(is_left)
        with workers.plain.begin() as connection:
            connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": channel})
        until(lambda: workers.handled == added)


@pytest.mark.only_on("postgresql")
def test_a_step_of_a_workflow_listens_too(workers: Workers, add: Add) -> None:
    workflow = Workflow(Email)
    step: Any = workflow.step("unclaimed", during="claimed", then="done", listen="steps")
    step(note(workers))

    with idle(workers, workflow):
        add("a")
        run(workers, "NOTIFY steps")
        until(lambda: workers.handled == ["a"])


@pytest.mark.only_on("sqlite", "mysql", "mariadb")
@pytest.mark.parametrize("workers", ["threads", "asyncio"], indirect=True)
def test_other_databases_ignore_the_channel(workers: Workers, add: Add) -> None:
    add("a")
    handler: Any = in_thread(note(workers)) if workers.awaits else note(workers)

    workers.drain(workers.queue(Email, handler, listen="new_email"))
    with idle(workers, workers.queue(Email, handler, listen="new_email")):
        pass

    assert workers.handled == ["a"]


@pytest.mark.parametrize("channel", ["", "ä" * 32, 7])
def test_a_name_that_the_server_would_cut_is_refused(channel: Any) -> None:
    with pytest.raises(ArgumentError, match="1 to 63 bytes"):
        JobQueue(Email, listen=channel)
