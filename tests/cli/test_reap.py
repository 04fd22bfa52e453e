"""``reap``, and the claims that ``work`` takes back."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner, claim
from sa_jobqueue.dialects.clock import utc_now

from .conftest import Run
from .films import Film, cut
from .shop import Base, Message

MESSAGES = "tests.cli.shop:Message"


@pytest.fixture
def jobs(engine: Engine) -> None:
    """Three unclaimed messages, the last of which has a single attempt."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Message(recipient="a"), Message(recipient="b")])
        session.flush()
        session.add(Message(recipient="c", max_attempts=1))


def claim_as(engine: Engine, owner: str | Owner, limit: int = 3) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner=owner, limit=limit)


def claim_of_the_dead(engine: Engine, limit: int = 3) -> str:
    with Owner(engine, "victim") as owner:
        claim_as(engine, owner, limit)
        return owner.name


def grow_old(engine: Engine, age: timedelta) -> None:
    with Session(engine) as session, session.begin():
        past = utc_now(-(age // timedelta(microseconds=1)))
        session.execute(update(Message).values(owner_date=past))


def statuses(engine: Engine) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(Message.status).order_by(Message.id)).all()


@pytest.mark.usefixtures("jobs")
def test_reap_prints_the_owners_the_reasons_and_the_new_statuses(
    run: Run, url: str, engine: Engine
) -> None:
    name = claim_of_the_dead(engine)

    result = run("reap", MESSAGES, "--url", url)

    assert result.exit_code == 0, result.output
    assert result.stdout == (
        f"3 of {name}: dead owner, 1 failed\n2 can be claimed again, 1 failed\n"
    )
    assert statuses(engine) == ["unclaimed", "unclaimed", "failed"]


@pytest.mark.usefixtures("jobs")
def test_reap_leaves_living_owners_and_young_claims_alone(
    run: Run, url: str, engine: Engine
) -> None:
    claim_as(engine, "mailer-1", 1)
    with Owner(engine) as owner:
        claim_as(engine, owner)

        result = run("reap", MESSAGES, "--url", url)

    assert (result.exit_code, result.stdout) == (0, "nothing to reap\n")
    assert statuses(engine) == ["claimed"] * 3


@pytest.mark.usefixtures("jobs")
def test_the_lease_is_in_seconds(run: Run, url: str, engine: Engine) -> None:
    claim_as(engine, "mailer-1", 2)
    grow_old(engine, timedelta(seconds=100))

    before = run("reap", MESSAGES, "--url", url, "--lease", 200)
    after = run("reap", MESSAGES, "--url", url, "--lease", 50)

    assert before.stdout == "nothing to reap\n"
    assert after.stdout == "2 of mailer-1: lease over\n2 can be claimed again, 0 failed\n"


@pytest.mark.usefixtures("jobs")
def test_max_runtime_takes_the_claims_of_the_living_too(run: Run, url: str, engine: Engine) -> None:
    with Owner(engine) as owner:
        claim_as(engine, owner, 2)

        kept = run("reap", MESSAGES, "--url", url, "--max-runtime", 100)
        forced = run("reap", MESSAGES, "--url", url, "--max-runtime", 0)

        assert kept.stdout == "nothing to reap\n"
        assert forced.stdout.startswith(f"2 of {owner.name}: max_runtime over\n")


@pytest.mark.usefixtures("jobs")
def test_rows_claimed_by_hand_have_no_owner_to_name(run: Run, url: str, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.execute(update(Message).values(status="claimed"))

    result = run("reap", MESSAGES, "--url", url, "--max-runtime", 0)

    assert result.stdout.startswith("3 of nobody: max_runtime over\n")


@pytest.mark.usefixtures("jobs")
def test_a_timer_outlives_a_server_that_is_away(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    reap = JobQueue.reap

    def fail_once(queue: JobQueue[Message], session: Session, **how: object) -> object:
        rounds.append(1)
        if len(rounds) == 2:
            raise OperationalError(None, None, Exception("connection refused"))
        if len(rounds) == 3:
            signal.raise_signal(signal.SIGTERM)
        return reap(queue, session, **how)  # type: ignore[arg-type]  # forwarded

    monkeypatch.setattr(JobQueue, "reap", fail_once)

    result = run("reap", MESSAGES, "--url", url, "--every", 0.01)

    assert result.exit_code == 0
    assert result.output == "tried again in 0.01 s: connection refused\nstopped\n"


def test_all_steps_of_a_workflow_are_reaped(run: Run, url: str, engine: Engine) -> None:
    Film.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Film(title="easy"))
        session.flush()
        cut.queue.claim(session, owner="gone")

    reaped = run("reap", "tests.cli.films:workflow", "--url", url, "--max-runtime", 0)

    assert reaped.stdout == "1 of gone: max_runtime over\n1 can be claimed again, 0 failed\n"


@pytest.mark.usefixtures("jobs")
def test_an_owners_name_is_no_command_to_the_terminal(run: Run, url: str, engine: Engine) -> None:
    claim_as(engine, "\x1b]0;title\x07", 1)

    reaped = run("reap", MESSAGES, "--url", url, "--max-runtime", 0)

    assert reaped.stdout.startswith("1 of \ufffd]0;title\ufffd: ")
