"""What goes wrong in a turn costs no other job, at whichever statement it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner
from sa_jobqueue.worker import Cancel, Failed, Retry, Worker
from tests.contract.worker.faults import (
    KINDS,
    Fault,
    Faults,
    LostAnswer,
    Picky,
    add_picky,
    faults_in,
    kill,
    picky_states,
)
from tests.contract.worker.support import work
from tests.models import Email, add_emails
from tests.support import SERVERS, with_empty_tables


def drained_with(engine: Engine, session: Session, faults: Any, **options: Any) -> None:
    """Drain five emails while something goes wrong, and expect each to be handled once."""
    session.rollback()
    with_empty_tables(engine, Email.metadata)
    add_emails(session, *"abcde")
    handled: Counter[str] = Counter()

    with faults:
        work(
            engine,
            JobQueue(Email),
            lambda email: handled.update(email.recipient),
            limit=2,
            **options,
        )

    assert handled == Counter("abcde")
    assert set(session.scalars(select(Email.status))) == {"done"}


def statements_of_a_run(engine: Engine, session: Session) -> int:
    counted = Faults(-1, lambda connection: None)
    drained_with(engine, session, faults_in(engine, counted), owner="w", reap_every=None)
    return counted.seen


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_at_any_statement_costs_no_job(
    engine: Engine, session: Session, db_alias: str, kind: Callable[[str], Exception]
) -> None:
    def fail(connection: Any) -> None:
        raise kind(db_alias)

    for number in range(statements_of_a_run(engine, session)):
        faults = faults_in(engine, Faults(number, fail))
        drained_with(engine, session, faults, owner="w", reap_every=None)


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.only_on(*SERVERS)
def test_a_connection_killed_at_any_statement_costs_no_job(
    engine: Engine, session: Session, db_url: URL, db_alias: str, autocommit: bool
) -> None:
    used = engine.execution_options(isolation_level="AUTOCOMMIT") if autocommit else engine
    for number in range(statements_of_a_run(used, session)):
        faults = faults_in(used, Faults(number, kill(db_url, db_alias)))
        drained_with(used, session, faults, owner="w", reap_every=None)


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("given", ["nothing", "a name", "an Owner"])
def test_the_answer_of_any_commit_may_be_lost(
    engine: Engine, session: Session, given: str, autocommit: bool
) -> None:
    used = engine.execution_options(isolation_level="AUTOCOMMIT") if autocommit else engine
    with Owner(engine) as owner:
        owners: dict[str, Any] = {"nothing": None, "a name": "w", "an Owner": owner}
        for number in range(20):
            lost = LostAnswer(engine, number)
            drained_with(used, session, lost, reap_every=None, owner=owners[given])
            if lost.seen <= number:
                break
        assert number > 3


@pytest.mark.parametrize("limit", [1, 5])
def test_a_job_whose_finish_is_refused_is_failed_alone(
    engine: Engine, picky: Session, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    add_picky(picky, "a", "b", "bad", "c", "d")
    handled: Counter[str] = Counter()
    outcomes: dict[str, Any] = {}

    work(
        engine,
        JobQueue(Picky),
        lambda job: handled.update([job.name]),
        limit=limit,
        on_outcome=lambda job, outcome: outcomes.setdefault(job.name, outcome),
    )

    assert handled == {"a": 1, "b": 1, "bad": 2, "c": 1, "d": 1}
    assert picky_states(picky) == {
        **dict.fromkeys("abcd", ("done", 1)),
        "bad": ("failed", 2),
    }
    error = picky.scalars(select(Picky.last_error).where(Picky.name == "bad")).one()
    assert "the finish was refused" in str(error)
    assert isinstance(outcomes["bad"], Failed)
    told = [each for each in caplog.records if "cannot be finished" in each.getMessage()]
    assert "attempt 1 of 2" in told[0].getMessage()
    assert "; next try in " in told[0].getMessage()
    assert "; not tried again: " in told[1].getMessage()
    assert [vars(each)["status"] for each in told] == ["unclaimed", "failed"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(None, "failed"), (Retry(reason="→"), "failed"), (Cancel("→"), "cancelled")],
)
def test_text_that_a_column_refuses_is_written_in_ascii(
    engine: Engine, picky: Session, outcome: Any, status: str
) -> None:
    add_picky(picky, "a", "b", "c")
    handled: Counter[str] = Counter()

    def handler(job: Picky) -> Any:
        handled.update(job.name)
        if job.name != "b":
            return None
        if outcome is None:
            raise ValueError("→")
        return outcome

    work(engine, JobQueue(Picky), handler, limit=3)

    assert (handled["a"], handled["c"]) == (1, 1)
    assert picky_states(picky)["b"][0] == status
    error = picky.scalars(select(Picky.last_error).where(Picky.name == "b")).one()
    assert str(error).endswith("\\u2192")


def test_a_refused_claim_costs_nothing_that_was_handled(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims are refused for good after the first: what was handled is finished at once."""
    add_emails(session, "a", "b", "c")
    queue = JobQueue(Email)
    claim, calls = queue.claim, []

    def refuse(*args: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise Fault("refused")
        return claim(*args, **given)

    monkeypatch.setattr(queue, "claim", refuse)
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=0.3))
    handled: list[str] = []
    with pytest.raises(Fault):
        work(engine, queue, lambda email: handled.append(email.recipient), limit=2)

    assert handled == ["a", "b"]
    assert len(calls) > 3
    assert list(session.scalars(select(Email.status).order_by(Email.id))) == [
        "done",
        "done",
        "unclaimed",
    ]


def test_a_worker_whose_claims_are_refused_can_be_stopped(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = JobQueue(Email)
    calls: list[int] = []

    def refuse(*args: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            worker.stop()
        raise Fault("refused")

    monkeypatch.setattr(queue, "claim", refuse)
    worker = Worker(engine, queue, lambda email: None, poll=timedelta(milliseconds=20))
    worker.run()

    assert len(calls) == 3
