"""A worker that waits for its database notices that it is to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.worker_support import statuses
from tests.contract.worker.faults import LostAnswer, deadlock
from tests.models import Email, add_emails


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far longer than a stop takes, and short enough for a test that fails."""
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=20))
    for module in ("turns", "refusals"):
        monkeypatch.setattr(f"sa_jobqueue.worker.{module}.UNDIVIDED", timedelta(seconds=0.3))


class Outage:
    """A database that refuses every statement, with an error that passes."""

    def __init__(self, alias: str, *, begun: bool = True) -> None:
        self.begun = begun
        self.met = 0
        self.when_met: Callable[[int], object] = lambda times: None
        self._alias = alias

    def begin(self) -> None:
        self.begun = True

    def meet(self, *_: Any) -> None:
        if self.begun:
            self.met += 1
            self.when_met(self.met)
            raise deadlock(self._alias)

    @contextmanager
    def of(self, engine: Engine) -> Iterator[None]:
        event.listen(engine, "before_cursor_execute", self.meet)
        try:
            yield
        finally:
            event.remove(engine, "before_cursor_execute", self.meet)


def seconds_to_stop(
    worker: Worker[Any], engine: Engine, outage: Outage, *, after: int = 3
) -> float:
    """Run a worker, stop it when it has met the outage so often; return how long that took."""
    stopped: list[float] = []

    def stop(times: int) -> None:
        if times == after:
            stopped.append(time.monotonic())
            worker.stop()

    outage.when_met = stop
    with outage.of(engine):
        worker.run()
    return time.monotonic() - stopped[0]


@pytest.mark.parametrize("owner", [None, "w"])
def test_a_worker_that_waits_to_claim_stops_at_once(
    engine: Engine, session: Session, db_alias: str, owner: str | None
) -> None:
    add_emails(session, "a")
    worker = Worker(engine, JobQueue(Email), lambda email: None, owner=owner)

    assert seconds_to_stop(worker, engine, Outage(db_alias)) < 1


def test_a_claim_whose_commit_was_not_answered_holds_no_stop_up(
    engine: Engine, session: Session, db_alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")
    outage = Outage(db_alias, begun=False)
    lost = LostAnswer(engine, 0, outage.begin)
    worker = Worker(engine, JobQueue(Email), lambda email: None, owner="w", reap_every=None)

    with lost:
        seconds = seconds_to_stop(worker, engine, outage)

    assert seconds < 5
    assert statuses(session) == {"a": "claimed"}
    assert "a reap returns the jobs that it may have claimed" in caplog.text


def test_a_worker_that_is_to_stop_still_waits_to_finish_what_it_has_handled(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_emails(session, "a", "b", "c")
    outage = Outage(db_alias, begun=False)
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        outage.begun = email.recipient == "b"
        if outage.begun:
            worker.stop()

    def end_after(times: int) -> None:
        outage.begun = times < 8

    outage.when_met = end_after
    worker = Worker(engine, JobQueue(Email), handler, owner="w", limit=3, reap_every=None)
    with outage.of(engine):
        worker.run()

    assert handled == ["a", "b"]
    assert statuses(session) == {"a": "done", "b": "done", "c": "unclaimed"}
