"""The heartbeat renews claims while handlers run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import URL, Engine, StaticPool, create_engine, event, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Fence, JobQueue, reap
from sa_jobqueue.worker import Worker
from sa_jobqueue.worker.heartbeat import Heartbeat
from sa_jobqueue.worker.in_hand import InHand
from tests.contract.worker.support import dates, hands_of, own_database, owners, transient, work
from tests.models import Base, Email, Render, add_emails, add_renders
from tests.support import SERVERS, until

SOON = timedelta(milliseconds=20)
SHORT_LEASE = timedelta(milliseconds=600)


def renewals(session: Session) -> int:
    """Count the claims whose date has changed since this session first saw it."""
    now = dates(session)
    first = session.info.setdefault("first", now)
    return sum(first[key] != date for key, date in now.items())


def test_a_long_running_job_and_the_jobs_behind_it_keep_their_claims_beyond_the_lease(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")

    def renewed_for_two_leases(claimed: datetime) -> bool:
        return min(dates(session).values()) > claimed + 2 * SHORT_LEASE

    def handler(email: Email) -> None:
        if email.recipient == "a":
            claimed = max(dates(session).values())
            # Not by a reap in between: a busy machine may renew late.
            until(lambda: renewed_for_two_leases(claimed))

    work(engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=2, owner="plain")

    assert owners(session) == ["plain", "plain"]
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_the_claim_of_a_job_that_its_handler_moves_on_is_renewed_and_finished(
    engine: Engine, session: Session
) -> None:
    add_renders(session, 1)

    def handler(render: Render) -> None:
        session.execute(update(Render).values(status="running"))
        session.commit()
        claimed = dated(session)
        until(lambda: dated(session) > claimed)

    work(engine, JobQueue(Render, lease=SHORT_LEASE), handler, owner="plain")

    assert session.scalars(select(Render.status)).all() == ["done"]


def dated(session: Session) -> Any:
    session.rollback()
    found = session.scalars(select(Render.owner_date)).one()
    session.rollback()
    return found


def test_claims_are_renewed_where_the_handler_has_the_only_connection(
    fresh_database: URL,
) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    with own_database(fresh_database, **options) as engine, own_database(fresh_database) as beside:
        with Session(engine) as session:
            add_emails(session, "a", "b")

        def handler(email: Email) -> None:
            with Session(engine) as own, Session(beside) as session:
                assert own.get(Email, email.id) is not None
                own.commit()  # an open read keeps SQLite's writers from committing
                own.connection()
                until(lambda: renewals(session))

        work(engine, JobQueue(Email, lease=SHORT_LEASE), handler)

        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


def test_jobs_whose_claim_was_found_lost_are_not_handled(
    engine: Engine, session: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a", "b", "c")
    handled: list[str] = []

    def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            stolen = update(Email).where(Email.recipient == "b").values(owner="thief")
            other.execute(stolen)
            other.commit()
            until(lambda: any("its claim was lost" in text for text in caplog.messages))
            until(lambda: any(job.lost for job in hands_of(worker).all))

    queue = JobQueue(Email, lease=SHORT_LEASE)
    worker = Worker(engine, queue, handler, limit=3, drain=True, poll=SOON)
    worker.run()

    assert handled == ["a", "c"]
    found = session.scalars(select(Email.status).order_by(Email.id))
    assert found.all() == ["done", "claimed", "done"]


def test_a_job_that_runs_too_long_is_not_renewed_and_is_taken_back(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a")
    taken: list[int] = []

    def take_back() -> bool:
        taken.append(len(reap(other, Email, max_runtime=SHORT_LEASE)))
        other.commit()
        return taken[-1] > 0

    def handler(email: Email) -> None:
        if not taken:
            until(take_back)

    work(engine, JobQueue(Email), handler, max_runtime=SHORT_LEASE, reap_every=None)

    assert taken[-1] == 1
    assert session.scalars(select(Email.status)).all() == ["done"]  # at the second attempt


def test_a_finish_waits_for_a_renewal_that_is_under_way(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_emails(session, "a")
    renewing, finishing = threading.Event(), threading.Event()
    wait = Heartbeat.wait_for_renewal

    def wait_and_say(heartbeat: Heartbeat) -> None:
        if renewing.is_set():
            finishing.set()
        wait(heartbeat)

    @event.listens_for(engine, "commit")
    def hold(connection: Any) -> None:
        if threading.current_thread().name == "sa_jobqueue heartbeat" and not renewing.is_set():
            renewing.set()
            finishing.wait(10)

    monkeypatch.setattr(Heartbeat, "wait_for_renewal", wait_and_say)
    queue = JobQueue(Email, lease=SHORT_LEASE)
    try:
        work(engine, queue, lambda email: until(renewing.is_set), delete=True)
    finally:
        event.remove(engine, "commit", hold)

    assert finishing.is_set()
    assert session.scalars(select(Email)).all() == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_many_renewals_and_finishes_lose_no_claim(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, *"abcdefghijklmnopqrstuvwxyz")
    queue = JobQueue(Email, lease=timedelta(milliseconds=6))

    def handler(email: Email) -> None:
        time.sleep(0.003)  # more than the pause between two renewals

    work(engine, queue, handler, limit=3)

    assert set(session.scalars(select(Email.status))) == {"done"}
    lost = [text for text in caplog.messages if "lost" in text]
    assert lost == []


def test_a_renewal_that_failed_is_tried_again_soon(
    engine: Engine, session: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, lease=timedelta(seconds=6))
    renew, times = queue.renew, []

    def fail_once(session: Session, fences: Sequence[Fence]) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise OperationalError("UPDATE", {}, transient(db_alias))
        renew(session, fences)

    monkeypatch.setattr(queue, "renew", fail_once)
    work(engine, queue, lambda email: until(lambda: renewals(session)))

    assert times[1] - times[0] < 1.7  # a beat takes two seconds


def test_a_claim_that_cannot_be_renewed_costs_no_other_its_renewal(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = add_emails(session, *"abcde")[2].id
    queue = JobQueue(Email, lease=SHORT_LEASE)
    renew, beats = queue.renew, []

    def refuse(session: Session, fences: Sequence[Fence]) -> None:
        beats.append(len(fences))
        if (refused,) in [fence.identity for fence in fences]:
            raise IntegrityError("UPDATE", {}, Exception("refused"))
        renew(session, fences)

    def handler(email: Email) -> None:
        if email.recipient == "a":
            until(lambda: renewals(session) == 4 and beats.count(5) == 2)

    monkeypatch.setattr(queue, "renew", refuse)
    work(engine, queue, handler, limit=5)

    session.rollback()
    assert set(session.scalars(select(Email.status))) == {"done"}
    assert len([text for text in caplog.messages if "renewal of 1 claims failed" in text]) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_row_that_somebody_locks_for_long_holds_up_no_other_renewal(
    engine: Engine, session: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [email.id for email in add_emails(session, *"abcd")]
    lock = select(Email).where(Email.id.in_(keys[1:3])).with_for_update()

    def handler(email: Email) -> None:
        if email.recipient == "a":
            other.execute(update(Email).where(Email.id == keys[1]).values(owner="thief"))
            other.commit()
            other.execute(lock)
            for _ in range(2):
                until(lambda: renewals(session) == 2)
                session.info.clear()
            until(lambda: [job.job.id for job in hands_of(worker).all if job.lost] == keys[1:2])
            other.rollback()
            until(lambda: renewals(session) == 3)

    queue = JobQueue(Email, lease=SHORT_LEASE)
    worker = Worker(engine, queue, handler, limit=4, drain=True, poll=SOON)
    worker.run()

    session.rollback()
    found = session.scalars(select(Email.status).order_by(Email.id))
    assert found.all() == ["done", "claimed", "done", "done"]
    assert not [text for text in caplog.messages if "renewing" in text]


@pytest.mark.only_on("sqlite")
def test_a_worker_on_a_database_in_memory_uses_one_thread() -> None:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, "a", "b")
    seen: list[str] = []

    def handler(email: Email) -> None:
        threading.Event().wait(0.05)
        seen.extend(thread.name for thread in threading.enumerate())

    work(engine, JobQueue(Email, lease=timedelta(milliseconds=20)), handler)

    assert "sa_jobqueue heartbeat" not in seen
    with Session(engine) as session:
        assert set(session.scalars(select(Email.status))) == {"done"}
    engine.dispose()


def test_the_thread_ends_with_the_run(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    seen: list[bool] = []

    def beating() -> bool:
        return "sa_jobqueue heartbeat" in {thread.name for thread in threading.enumerate()}

    work(engine, JobQueue(Email), lambda email: seen.append(beating()))

    assert seen == [True]
    assert not beating()


@pytest.mark.parametrize(
    ("slots", "renewed"), [(1, ["handled"]), (2, ["handled", "unstarted", "begun"])]
)
def test_after_max_runtime_the_claims_of_handled_jobs_are_still_renewed(
    slots: int, renewed: list[str]
) -> None:
    names = ("handled", "running for long", "unstarted", "begun")
    jobs: list[InHand[str]] = [InHand(Mock(), name) for name in names]
    jobs[0].began = jobs[1].began = time.monotonic() - 100
    jobs[0].outcome = None
    jobs[3].began = time.monotonic()
    heartbeat = Heartbeat(
        Mock(),
        Mock(),
        lambda: jobs,
        lease=timedelta(seconds=1),
        max_runtime=timedelta(seconds=50),
        slots=slots,
    )

    assert [in_hand.job for in_hand in heartbeat._within_their_time()] == renewed
