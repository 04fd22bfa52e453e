"""A queue whose claims are refused does not hold up the worker's other queues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, String, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin
from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import Transition, Workflow
from tests.contract.worker.support import transient
from tests.support import with_empty_tables

SOON = timedelta(milliseconds=20)


class Base(DeclarativeBase):
    """The base of a shop's tables."""


class Parcel(RetryMixin, JobMixin, Base):
    """A parcel to send."""

    __tablename__ = "refused_parcel"

    id: Mapped[int] = mapped_column(primary_key=True)
    street: Mapped[str] = mapped_column(String(20), default="High Street")


class Letter(RetryMixin, JobMixin, Base):
    """A letter to send."""

    __tablename__ = "refused_letter"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def shop(engine: Engine) -> Iterator[Session]:
    with_empty_tables(engine, Base.metadata)
    with Session(engine) as session:
        yield session


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=1))


def left(session: Session, entity: Any) -> list[int]:
    session.rollback()
    return list(session.scalars(select(entity.id).where(entity.status != "done")))


@pytest.mark.parametrize("letters", [1, 7])
def test_the_other_queues_are_served_until_the_worker_ends(
    engine: Engine, shop: Session, caplog: pytest.LogCaptureFixture, letters: int
) -> None:
    shop.add_all([Parcel(id=1), *(Letter(id=number) for number in range(1, letters + 1))])
    shop.commit()
    shop.execute(text("UPDATE refused_parcel SET attempts = 2147483647"))
    if engine.dialect.name == "sqlite":  # which counts further
        shop.execute(
            text(
                "CREATE TRIGGER IF NOT EXISTS refused BEFORE UPDATE ON refused_parcel "
                "BEGIN SELECT RAISE(ABORT, 'attempts out of range'); END"
            )
        )
    shop.commit()
    parcels, queue = JobQueue(Parcel), JobQueue(Letter)
    sent: list[int] = []
    parcels.handler(lambda parcel: None)
    queue.handler(lambda letter: sent.append(letter.id))

    with pytest.raises(Exception, match=r"[Oo]ut of range"):
        Worker(engine, [parcels, queue], concurrency=2, poll=SOON, drain=True).run()

    assert sorted(sent) == list(range(1, letters + 1))
    assert left(shop, Letter) == []
    assert caplog.text.count("refuses a claim") == 1
    if engine.dialect.name == "sqlite":
        shop.execute(text("DROP TRIGGER refused"))
        shop.commit()


def test_a_queue_that_is_refused_is_left_alone_for_a_pause(
    engine: Engine, shop: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(hours=1))
    shop.add_all([Parcel(), *(Letter() for _ in range(20))])
    shop.commit()
    parcels, letters = JobQueue(Parcel), JobQueue(Letter)
    asked: list[int] = []
    sent: list[int] = []

    def handle(letter: Letter) -> None:
        sent.append(letter.id)
        if len(sent) == 20:
            worker.stop()

    def refuse(session: Session, **options: Any) -> Any:
        asked.append(len(sent))
        raise LookupError("no such street")

    parcels.handler(lambda parcel: None)
    letters.handler(handle)
    monkeypatch.setattr(parcels, "claim", refuse)
    worker: Worker[Any] = Worker(engine, [parcels, letters], poll=SOON)

    worker.run()

    assert len(sent) == 20
    assert asked == [0, 0]  # with the letters, and alone


def test_a_serial_queue_with_a_bad_head_does_not_hold_up_another_queue(
    engine: Engine, shop: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.add_all([*(Parcel() for _ in range(3)), *(Letter() for _ in range(3))])
    shop.commit()
    parcels, letters = JobQueue(Parcel, serial_by=Parcel.street), JobQueue(Letter)
    sent: list[int] = []
    parcels.handler(lambda parcel: None)
    letters.handler(lambda letter: sent.append(letter.id))

    def refuse(session: Session, **options: Any) -> Any:
        raise LookupError("no such street")

    monkeypatch.setattr(parcels, "claim", refuse)

    with pytest.raises(LookupError, match="no such street"):
        Worker(engine, [parcels, letters], concurrency=2, poll=SOON, drain=True).run()

    assert len(sent) == 3
    assert left(shop, Letter) == []


def test_a_job_whose_transition_is_refused_by_a_listener_is_passed_over(
    engine: Engine, shop: Session, caplog: pytest.LogCaptureFixture
) -> None:
    shop.add_all(Letter(id=number) for number in range(1, 5))
    shop.commit()
    workflow, sent = Workflow(Letter), list[int]()

    @workflow.step("unclaimed", during="claimed", then="done")
    def send(letter: Letter) -> None:
        sent.append(letter.id)

    @workflow.on_transition
    def check(session: Session, transition: Transition) -> None:
        if transition.identity == (2,):
            raise ValueError("letter 2 has no stamp")

    Worker(engine, workflow, limit=4, poll=SOON, drain=True).run()

    assert sorted(sent) == [1, 3, 4]
    assert left(shop, Letter) == [2]
    assert "Letter 2 cannot be claimed" in caplog.text


def test_if_a_listener_refuses_all_jobs_none_is_passed_over(
    engine: Engine, shop: Session, caplog: pytest.LogCaptureFixture
) -> None:
    shop.add_all(Letter() for _ in range(3))
    shop.commit()
    workflow = Workflow(Letter)

    @workflow.step("unclaimed", during="claimed", then="done")
    def send(letter: Letter) -> None:
        raise AssertionError("it was never claimed")

    @workflow.on_transition
    def check(session: Session, transition: Transition) -> None:
        raise ValueError("the stamps are gone")

    with pytest.raises(ValueError, match="the stamps are gone"):
        Worker(engine, workflow, limit=4, poll=SOON, drain=True).run()

    assert "cannot be claimed" not in caplog.text


def test_a_queue_that_is_refused_for_long_ends_the_worker_also_while_others_are_busy(
    engine: Engine, shop: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.lanes.FAIR_EVERY", 1_000_000)  # the parcels come last
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=0.1))
    monkeypatch.setattr("sa_jobqueue.worker.transactions.LONGEST_PAUSE", timedelta(seconds=0.05))
    shop.add_all([Parcel(), Letter()])
    shop.commit()
    letters, parcels = JobQueue(Letter), JobQueue(Parcel)
    sent: list[int] = []

    def handle(letter: Letter) -> None:
        sent.append(letter.id)
        time.sleep(0.02)
        with Session(engine) as session, session.begin():
            session.add(Letter())
        if len(sent) == 300:
            worker.stop()

    def refuse(session: Session, **options: Any) -> Any:
        raise LookupError("no such street")

    letters.handler(handle)
    parcels.handler(lambda parcel: None)
    monkeypatch.setattr(parcels, "claim", refuse)
    worker: Worker[Any] = Worker(engine, [letters, parcels], limit=5, poll=SOON)

    with pytest.raises(LookupError, match="no such street"):
        worker.run()

    assert len(left(shop, Letter)) == 1


def test_an_error_that_passes_does_not_end_the_worker_while_another_queue_has_jobs(
    engine: Engine, shop: Session, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.lanes.FAIR_EVERY", 1_000_000)  # the parcels come last
    monkeypatch.setattr("sa_jobqueue.worker.turns.UNDIVIDED", timedelta(seconds=0))
    shop.add_all([Parcel(), Letter()])
    shop.commit()
    letters, parcels = JobQueue(Letter), JobQueue(Parcel)
    sent: list[type[object]] = []
    claim = parcels.claim
    errors = iter(
        [LookupError("no such street"), OperationalError("UPDATE", {}, transient(db_alias))]
    )

    def refuse_twice(session: Session, **options: Any) -> Any:
        for error in errors:
            raise error
        return claim(session, **options)

    letters.handler(lambda letter: sent.append(Letter))
    parcels.handler(lambda parcel: sent.append(Parcel))
    monkeypatch.setattr(parcels, "claim", refuse_twice)

    Worker(engine, [letters, parcels], limit=5, poll=SOON, drain=True).run()

    assert sorted(sent, key=str) == [Letter, Parcel]
