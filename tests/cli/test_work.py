"""``work`` and ``status`` on a user's own queues."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from click.testing import Result
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim

from .conftest import Run, Start, plain
from .records import PATIENCE, Listener, ends, messages
from .shop import Base, Message, Order

MESSAGES = "tests.cli.shop:Message"
SEND = "tests.cli.shop:send"
REFUSE = "tests.cli.shop:refuse"


@pytest.fixture
def jobs(engine: Engine) -> None:
    """Two unclaimed messages and an order."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Message(recipient="anna"), Message(recipient="bob")])
        session.add(Order(shop="north", number=7))


def statuses(engine: Engine, entity: type[Message | Order] = Message) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(entity.status)).all()


@pytest.fixture
def drain(run: Run, url: str) -> Run:
    """Drain a queue with a handler."""

    def drain(queue: str, handler: str, *options: object) -> Result:
        into_log = ("--url", url, "--drain", "--log-json")
        return run("work", queue, "--handler", handler, *into_log, *options)

    return drain


@pytest.mark.usefixtures("jobs")
def test_a_drain_logs_what_became_of_each_job(drain: Run, engine: Engine) -> None:
    result = drain(MESSAGES, SEND)

    assert ends(result) == [(1, "sent"), (2, "sent")]
    assert messages(result)[-1] == "no job is due, and no retry waits"
    assert statuses(engine) == ["sent", "sent"]


@pytest.mark.usefixtures("jobs")
def test_done_jobs_are_deleted_on_demand(drain: Run, engine: Engine) -> None:
    result = drain(MESSAGES, SEND, "--delete", "--limit", 10)

    assert ends(result) == [(1, "sent"), (2, "sent")]
    assert statuses(engine) == []


@pytest.mark.usefixtures("jobs")
def test_a_target_may_be_a_queue_or_a_class(drain: Run, engine: Engine) -> None:
    result = drain("tests.cli.shop:to_a", SEND)

    assert ends(result) == [(1, "sent")]
    assert statuses(engine) == ["sent", "unclaimed"]


@pytest.mark.usefixtures("jobs")
def test_a_failed_job_without_attempts_is_failed(drain: Run, engine: Engine) -> None:
    result = drain("tests.cli.shop:Order", REFUSE)

    assert ends(result) == [("north", 7, "failed")]
    assert statuses(engine, Order) == ["failed"]


@pytest.mark.usefixtures("jobs")
def test_a_failed_job_is_tried_again_while_attempts_remain(drain: Run, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Message, 1).max_attempts = 2

    result = drain("tests.cli.shop:to_a", REFUSE)

    assert ends(result) == [(1, "unclaimed"), (1, "failed")]


@pytest.mark.usefixtures("jobs")
def test_a_cancelled_job_is_named(drain: Run) -> None:
    assert ends(drain("tests.cli.shop:to_a", "tests.cli.shop:drop")) == [(1, "cancelled")]


@pytest.mark.usefixtures("jobs")
def test_sigterm_ends_a_worker(start: Start, url: str) -> None:
    worker = start("work", MESSAGES, "--handler", SEND, "--url", url, "--owner", "me", "--log-json")
    listener = Listener(worker)
    listener.wait_for("Message 2 sent")

    worker.send_signal(signal.SIGTERM)

    listener.wait_for("the worker was stopped")
    assert worker.wait(PATIENCE) == 0


@pytest.mark.usefixtures("jobs")
def test_status_counts_in_the_tables_own_words(run: Run, url: str, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner="mailer-1")

    result = run("status", "--url", url, MESSAGES)

    assert result.exit_code == 0, result.output
    shown = plain(result.output)
    for line in ("unclaimed 1", "claimed 1", "sent 0"):
        assert line in shown


@pytest.mark.usefixtures("jobs")
def test_the_status_of_a_queue_counts_the_jobs_of_its_criteria(
    run: Run, url: str, engine: Engine
) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner="bobs", limit=2)
        session.add_all([Message(recipient="anton"), Message(recipient="carl")])

    of_queue = plain(run("status", "--url", url, "tests.cli.shop:to_a").output)
    of_class = plain(run("status", "--url", url, MESSAGES).output)

    for line in ("unclaimed 1", "claimed 1"):
        assert line in of_queue
    for line in ("unclaimed 2", "claimed 2"):
        assert line in of_class


@pytest.mark.parametrize(
    ("handler", "driver"), [("leave", "sqlite"), ("leave_awaited", "sqlite+aiosqlite")]
)
def test_a_handler_that_exits_is_no_success_of_the_command(
    run: Run,
    url: str,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    handler: str,
    driver: str,
) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Message(recipient=name) for name in ("anna", "bert"))

    result = run(
        *("work", MESSAGES, "--handler", f"tests.cli.shop:{handler}", "--drain"),
        *("--url", url.replace("sqlite", driver, 1)),
    )

    assert result.exit_code == 1
    assert "SystemExit(0) has ended this worker" in caplog.text
    assert "no job is due, and no retry waits" not in caplog.text
