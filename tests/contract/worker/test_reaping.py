"""A worker takes back the claims of the dead between its turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, Owner, claim
from sa_jobqueue.verbs import Reaped
from sa_jobqueue.worker import Worker
from tests.contract.worker.support import SOON, transient, work
from tests.models import Email, Render, add_emails, add_renders
from tests.support import until


def test_a_drain_takes_back_the_claims_of_the_dead_and_leaves_those_of_the_living(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "dead", "living", "unknown")
    with Owner(engine) as living:
        with Owner(engine) as dying:
            claim(session, Email, owner=dying)
            session.commit()
        for owner in (living, "plain"):
            claim(session, Email, owner=owner)
            session.commit()
        handled: list[str] = []

        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))

    assert handled == ["dead"]


def test_a_busy_worker_takes_back_claims_while_its_handlers_run(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "dead", "a", "b", "c")
    dying = Owner(engine)
    dying.open()
    claim(session, Email, owner=dying)
    session.commit()
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            dying.close()
            until(lambda: is_unclaimed(other, "dead"))

    work(engine, JobQueue(Email), handler, reap_every=SOON)

    assert handled == ["a", "dead", "b", "c"]


class Renders(JobQueue[Render]):
    """Restores what a handler had set, in the transaction of each reap."""

    def reap(self, session: Any, **options: Any) -> Reaped:
        reaped = super().reap(session, **options)
        returned = [job.identity[0] for job in reaped.jobs if not job.failed]
        session.execute(update(Render).where(Render.id.in_(returned)).values(result="for any"))
        return reaped


def test_a_queue_may_write_in_the_transaction_of_its_workers_reap(
    engine: Engine, session: Session
) -> None:
    add_renders(session, 1)
    with Owner(engine) as dying:
        claim(session, Render, owner=dying)[0].result = "by the dead"
        session.commit()
    seen: list[str | None] = []

    work(engine, Renders(Render), lambda render: seen.append(render.result))

    assert seen == ["for any"]


def is_unclaimed(session: Session, recipient: str) -> bool:
    session.rollback()
    found = select(Email.status).where(Email.recipient == recipient)
    return session.scalars(found).one() == "unclaimed"


def test_a_worker_without_reaping_takes_nothing_back(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        claim(session, Email, owner=owner)
        session.commit()

    work(engine, JobQueue(Email), lambda email: None, reap_every=None)

    assert session.scalars(select(Email.status)).all() == ["claimed"]


def test_a_reap_that_failed_is_tried_at_its_next_time(
    engine: Engine, session: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a", "b")
    with Owner(engine) as owner:
        claim(session, Email, owner=owner)
        session.commit()
    queue = JobQueue(Email)
    found, tries = queue.reap, []

    def fail_once(*args: Any, **how: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("SELECT", {}, transient(db_alias))
        return found(*args, **how)

    monkeypatch.setattr(queue, "reap", fail_once)
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if len(handled) == 2:
            worker.stop()

    worker = Worker(engine, queue, handler, reap_every=SOON, poll=SOON)
    worker.run()

    assert sorted(handled) == ["a", "b"]


@pytest.mark.parametrize("option", ["max_runtime", "reap_every"])
@pytest.mark.parametrize("duration", [timedelta(0), 5])
def test_invalid_durations_are_refused(engine: Engine, option: str, duration: object) -> None:
    with pytest.raises(ArgumentError, match=option):
        Worker(engine, JobQueue(Email), lambda email: None, **{option: duration})  # type: ignore[arg-type]
