"""``work`` and ``status`` on a user's own queues."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim

from .conftest import Run, Start, finished
from .shop import Base, Message, Order
from .test_demo import plain, read_until

MESSAGES = "tests.cli.shop:Message"
SEND = "tests.cli.shop:send"


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


@pytest.mark.usefixtures("jobs")
def test_a_drain_says_what_became_of_each_job(run: Run, url: str, engine: Engine) -> None:
    result = run("work", MESSAGES, SEND, "--url", url, "--drain")

    assert result.exit_code == 0, result.output
    assert result.stdout == "1 sent\n2 sent\nall done\n"
    assert statuses(engine) == ["sent", "sent"]


@pytest.mark.usefixtures("jobs")
def test_done_jobs_are_deleted_on_demand(run: Run, url: str, engine: Engine) -> None:
    result = run("work", MESSAGES, SEND, "--url", url, "--drain", "--delete", "--batch", 10)

    assert result.stdout == "1 sent\n2 sent\nall done\n"
    assert statuses(engine) == []


@pytest.mark.usefixtures("jobs")
def test_a_target_may_be_a_queue_or_a_class(run: Run, url: str, engine: Engine) -> None:
    result = run("work", "tests.cli.shop:to_a", SEND, "--url", url, "--drain")

    assert result.stdout == "1 sent\nall done\n"
    assert statuses(engine) == ["sent", "unclaimed"]


@pytest.mark.usefixtures("jobs")
def test_a_failed_job_without_attempts_is_failed(run: Run, url: str, engine: Engine) -> None:
    result = run("work", "tests.cli.shop:Order", "tests.cli.shop:refuse", "--url", url, "--drain")

    assert result.exit_code == 0
    assert result.stdout == "north, 7 failed\nall done\n"
    assert statuses(engine, Order) == ["failed"]


@pytest.mark.usefixtures("jobs")
def test_a_failed_job_is_tried_again_while_attempts_remain(
    run: Run, url: str, engine: Engine
) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Message, 1).max_attempts = 2

    result = run("work", "tests.cli.shop:to_a", "tests.cli.shop:refuse", "--url", url, "--drain")

    assert result.stdout == "1 failed (will be tried again)\n1 failed\nall done\n"


@pytest.mark.usefixtures("jobs")
def test_a_cancelled_job_is_named(run: Run, url: str) -> None:
    result = run("work", "tests.cli.shop:to_a", "tests.cli.shop:drop", "--url", url, "--drain")

    assert result.stdout == "1 cancelled\nall done\n"


@pytest.mark.usefixtures("jobs")
def test_sigterm_ends_a_worker(start: Start, url: str) -> None:
    (Path.cwd() / "handlers.py").write_text("def send(job): pass\n")
    worker = start("work", MESSAGES, "handlers:send", "--url", url, "--owner", "me")
    read_until(worker, "2 sent")

    worker.send_signal(signal.SIGTERM)

    code, output, errors = finished(worker)
    assert (code, output) == (0, "stopped\n"), errors


@pytest.mark.usefixtures("jobs")
def test_status_counts_in_the_tables_own_words(run: Run, url: str, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner="mailer-1")

    result = run("status", "--url", url, MESSAGES)

    assert result.exit_code == 0, result.output
    shown = plain(result.output)
    for line in ("unclaimed 1", "claimed 1", "sent 0", "depth due 1", "claimed by mailer-1 1"):
        assert line in shown


def test_status_of_the_example_needs_no_name(run: Run, url: str) -> None:
    run("setup-tables", "--url", url)

    result = run("status", "--url", url)

    assert result.exit_code == 0
    assert "unclaimed 0" in plain(result.output)


@pytest.mark.usefixtures("jobs")
def test_the_status_of_a_queue_counts_the_jobs_of_its_criteria(
    run: Run, url: str, engine: Engine
) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner="bobs", limit=2)
        session.add_all([Message(recipient="anton"), Message(recipient="carl")])

    of_queue = plain(run("status", "--url", url, "tests.cli.shop:to_a").output)
    of_class = plain(run("status", "--url", url, MESSAGES).output)

    for line in ("unclaimed 1", "claimed 1", "depth due 1", "claimed by bobs 1"):
        assert line in of_queue
    for line in ("unclaimed 2", "claimed 2", "depth due 2", "claimed by bobs 2"):
        assert line in of_class
