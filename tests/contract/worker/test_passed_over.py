"""A row that cannot be claimed holds up no other job: the worker passes over it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Dialect,
    Engine,
    ForeignKey,
    String,
    TypeDecorator,
    bindparam,
    select,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.events import listen
from sa_jobqueue.process.runtime import THREADS
from sa_jobqueue.worker import Lane, Worker
from sa_jobqueue.worker.owner_name import OwnerName
from sa_jobqueue.worker.passed_over import PassedOver
from sa_jobqueue.workflow import Workflow
from tests.contract.asyncio.support import make_async_engine
from tests.running import ASYNC_DRIVERS
from tests.support import with_empty_tables

SOON = timedelta(milliseconds=20)


class Colour(TypeDecorator[str]):
    """A colour, as a version of the application knows it."""

    impl = String(20)
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value == "infrared":
            raise LookupError(f"{value!r} is no colour that this version knows")
        return value


class Base(DeclarativeBase):
    """The base of the painter's tables."""


class Tin(Base):
    """A tin of paint."""

    __tablename__ = "passed_tin"

    id: Mapped[int] = mapped_column(primary_key=True)
    colour: Mapped[str] = mapped_column(Colour)


class Wall(PriorityMixin, RetryMixin, JobMixin, Base):
    """A wall to paint, perhaps with the paint of a tin."""

    __tablename__ = "passed_wall"

    id: Mapped[int] = mapped_column(primary_key=True)
    colour: Mapped[str] = mapped_column(Colour)
    tin_id: Mapped[int | None] = mapped_column(ForeignKey(Tin.id))

    tin: Mapped[Tin | None] = relationship()


class Room(JobMixin, Base):
    """A room of a house, with a key of two columns."""

    __tablename__ = "passed_room"

    house: Mapped[int] = mapped_column(primary_key=True)
    door: Mapped[str] = mapped_column(String(5), primary_key=True)
    colour: Mapped[str] = mapped_column(Colour)


@pytest.fixture
def walls(engine: Engine) -> Iterator[Session]:
    with_empty_tables(engine, Base.metadata)
    with Session(engine) as session:
        yield session


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(seconds=0.2))


def add(session: Session, *colours: str) -> None:
    session.add_all(
        Wall(id=number, colour=colour) for number, colour in enumerate(colours, start=1)
    )
    session.commit()


def left(session: Session) -> list[Any]:
    """The walls that are not painted: key, status and attempts."""
    session.rollback()
    query = select(Wall.id, Wall.status, Wall.attempts).where(Wall.status != "done")
    return [tuple(row) for row in session.execute(query.order_by(Wall.id))]


def paint(engine: Engine, queue: Any, handle: Callable[[Any], None], **options: Any) -> None:
    options = {"drain": True, "poll": SOON, **options}
    Worker(engine, queue, handle, **options).run()


def paint_awaited(
    engine: Engine, queue: Any, handle: Callable[[Any], None], **options: Any
) -> None:
    async def handle_awaited(job: Any) -> None:
        handle(job)

    async def run() -> None:
        own = make_async_engine(engine.url, ASYNC_DRIVERS[engine.url.get_backend_name()])
        given = {"drain": True, "poll": SOON, **options}
        await AsyncWorker(own, queue, handle_awaited, **given).run()
        await own.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("work", [paint, paint_awaited], ids=["Worker", "AsyncWorker"])
def test_the_other_jobs_are_handled_and_the_row_stays_as_it_was(
    engine: Engine,
    walls: Session,
    caplog: pytest.LogCaptureFixture,
    work: Callable[..., None],
    limit: int,
) -> None:
    add(walls, "red", "infrared", "blue", "infrared", *["green"] * 5)
    painted: list[int] = []

    work(engine, JobQueue(Wall), lambda wall: painted.append(wall.id), limit=limit)

    assert sorted(painted) == [1, 3, 5, 6, 7, 8, 9]
    assert left(walls) == [(2, "unclaimed", 0), (4, "unclaimed", 0)]
    told = [text for text in caplog.messages if "cannot be claimed" in text]
    assert re.findall(r"\d+", " ".join(text.split(" cannot ")[0] for text in told)) == ["2", "4"]
    assert all("no colour that this version knows" in text for text in told)
    assert "refuses" not in caplog.text


def test_a_row_behind_many_others_is_passed_over(engine: Engine, walls: Session) -> None:
    add(walls, *["red"] * 119, "infrared", *["red"] * 30)
    painted: list[int] = []

    paint(engine, JobQueue(Wall), lambda wall: painted.append(wall.id), limit=150)

    assert sorted(painted) == [number for number in range(1, 151) if number != 120]
    assert left(walls) == [(120, "unclaimed", 0)]


@pytest.mark.parametrize("load", [joinedload, selectinload])
def test_a_row_that_is_loaded_with_its_job_counts_too(
    engine: Engine, walls: Session, load: Any
) -> None:
    add(walls, "red", "green", "blue")
    walls.add(Tin(id=1, colour="infrared"))
    walls.flush()
    walls.execute(text("UPDATE passed_wall SET tin_id = 1 WHERE id = 2"))
    walls.commit()
    painted: list[int] = []

    paint(
        engine,
        JobQueue(Wall),
        lambda wall: painted.append(wall.id),
        limit=3,
        options=[load(Wall.tin)],
    )

    assert painted == [1, 3]
    assert left(walls) == [(2, "unclaimed", 0)]


def test_a_row_is_tried_again_after_some_minutes(
    engine: Engine, walls: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.passed_over.PASSED_OVER_FOR", timedelta(seconds=0.1))
    add(walls, "infrared", "red", "blue")
    painted: list[int] = []
    worker: Worker[Wall]

    def handle(wall: Wall) -> None:
        painted.append(wall.id)
        if wall.id == 3:
            walls.execute(text("UPDATE passed_wall SET colour = 'black' WHERE id = 1"))
            walls.commit()
        if wall.id == 1:
            worker.stop()

    worker = Worker(engine, JobQueue(Wall), handle, poll=SOON)
    too_late = threading.Timer(20, worker.stop)
    too_late.start()
    worker.run()
    too_late.cancel()

    assert painted == [2, 3, 1]
    assert left(walls) == []


def test_a_row_that_is_tried_again_in_vain_is_not_logged_again(
    engine: Engine,
    walls: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.passed_over.PASSED_OVER_FOR", timedelta(seconds=0.1))
    looked: list[int] = []
    find = PassedOver.find

    def noted(self: PassedOver[Wall], *given: Any, **named: Any) -> int:
        looked.append(found := find(self, *given, **named))
        return found

    monkeypatch.setattr(PassedOver, "find", noted)
    add(walls, "infrared", "red", "blue")

    paint(engine, JobQueue(Wall), lambda wall: time.sleep(0.15))

    assert looked[:2] == [1, 1]
    assert len([text for text in caplog.messages if "cannot be claimed" in text]) == 1


def test_the_queue_without_a_row_is_made_once(walls: Session) -> None:
    add(walls, "red", "infrared")
    name = OwnerName("w", transactions=None, runtime=THREADS)  # type: ignore[arg-type]
    passed_over: PassedOver[Wall] = PassedOver(name)
    lane = Lane(JobQueue(Wall), print)
    assert passed_over.queue_of(lane) is lane.queue

    assert passed_over.find(walls, lane, 5, LookupError()) == 1

    claimed_from = passed_over.queue_of(lane)
    assert passed_over.queue_of(lane) is claimed_from is not lane.queue
    assert [wall.id for wall in claimed_from.claim(walls, owner="w", limit=5)] == [1]


def test_a_row_with_a_key_of_two_columns_is_passed_over(engine: Engine, walls: Session) -> None:
    walls.add_all(
        Room(house=1, door=door, colour=colour)
        for door, colour in [("a", "red"), ("b", "infrared"), ("c", "blue")]
    )
    walls.commit()
    painted: list[str] = []

    paint(engine, JobQueue(Room), lambda room: painted.append(room.door), limit=5)

    assert painted == ["a", "c"]


def test_many_rows_with_a_key_of_two_columns_are_passed_over(
    engine: Engine, walls: Session
) -> None:
    walls.add_all(Room(house=house, door="a", colour="infrared") for house in range(600))
    walls.add(Room(house=601, door="a", colour="red"))
    walls.commit()
    painted: list[int] = []

    paint(engine, JobQueue(Room), lambda room: painted.append(room.house), limit=700)

    assert painted == [601]


def test_a_step_of_a_workflow_passes_over_it_and_tells_its_listeners(
    engine: Engine, walls: Session
) -> None:
    add(walls, "infrared", "red")
    workflow = Workflow(Wall)
    told: list[Any] = []
    workflow.on_transition(lambda session, transition: told.append(transition))

    @workflow.step("unclaimed", during="claimed", then="done")
    def brush(wall: Wall) -> None:
        assert wall.id == 2

    Worker(engine, workflow, drain=True, poll=SOON).run()

    assert left(walls) == [(1, "unclaimed", 0)]
    assert [(one.identity, one.after) for one in told] == [((2,), "claimed"), ((2,), "done")]


@pytest.mark.parametrize("limits", [{"strict_order": True}, {"serial_by": Wall.priority}])
def test_where_no_job_may_overtake_another_the_worker_ends(
    engine: Engine, walls: Session, caplog: pytest.LogCaptureFixture, limits: dict[str, Any]
) -> None:
    add(walls, "infrared", "red")

    with pytest.raises(LookupError, match="no colour that this version knows"):
        paint(engine, JobQueue(Wall, **limits), lambda wall: None, limit=2)

    assert (1, "unclaimed", 0) in left(walls)
    assert "cannot be claimed" not in caplog.text


def test_where_too_many_rows_cannot_be_loaded_the_worker_ends(
    engine: Engine, walls: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.passed_over.MOST", 1)
    add(walls, "infrared", "infrared", "infrared")

    with pytest.raises(LookupError, match="no colour that this version knows"):
        paint(engine, JobQueue(Wall), lambda wall: None)

    assert len(left(walls)) == 3


def refuse(session: Session, *walls: int) -> None:
    """Have the database refuse every change of these walls."""
    session.execute(
        text("UPDATE passed_wall SET attempts = 2147483647 WHERE id IN :walls").bindparams(
            bindparam("walls", walls, expanding=True)
        )
    )
    if session.get_bind().dialect.name == "sqlite":  # which counts further
        session.execute(
            text(
                "CREATE TRIGGER IF NOT EXISTS passed_full BEFORE UPDATE ON passed_wall "
                "WHEN OLD.attempts = 2147483647 "
                "BEGIN SELECT RAISE(ABORT, 'attempts out of range'); END"
            )
        )
    session.commit()


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("work", [paint, paint_awaited], ids=["Worker", "AsyncWorker"])
def test_a_row_that_the_database_refuses_to_change_is_passed_over(
    engine: Engine,
    walls: Session,
    caplog: pytest.LogCaptureFixture,
    work: Callable[..., None],
    limit: int,
) -> None:
    add(walls, "red", "stuck", "blue", "infrared", "stuck", *["green"] * 4)
    refuse(walls, 2, 5)
    painted: list[int] = []

    work(engine, JobQueue(Wall), lambda wall: painted.append(wall.id), limit=limit)

    assert sorted(painted) == [1, 3, 6, 7, 8, 9]
    full = 2147483647
    assert left(walls) == [(2, "unclaimed", full), (4, "unclaimed", 0), (5, "unclaimed", full)]
    told = [text for text in caplog.messages if "cannot be claimed" in text]
    assert sorted(re.findall(r"\d+", " ".join(text.split(" cannot ")[0] for text in told))) == [
        "2",
        "4",
        "5",
    ]
    assert any(re.search("[Oo]ut of range", text) for text in told)


def test_listeners_are_told_of_no_claim_that_only_looks_for_the_row(
    engine: Engine, walls: Session
) -> None:
    add(walls, "red", "stuck", "blue", "infrared")
    refuse(walls, 2)
    queue, told = JobQueue(Wall), list[Any]()
    listen(queue, "after_claim", lambda event: told.extend(job.key for job in event.jobs))
    listen(JobQueue(Wall), "after_claim", lambda event: told.append("another queue"))

    paint(engine, queue, lambda wall: None, limit=5)

    assert sorted(told) == [(1,), (3,)]


def test_a_refused_row_that_is_known_is_passed_over_again_beside_no_other(
    engine: Engine, walls: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.passed_over.PASSED_OVER_FOR", timedelta(seconds=0.1))
    add(walls, "stuck", "red")
    refuse(walls, 1)
    painted: list[int] = []
    worker = Worker(engine, JobQueue(Wall), lambda wall: painted.append(wall.id), poll=SOON)
    stop = threading.Timer(1, worker.stop)  # several times the time of a try, and of patience
    stop.start()

    worker.run()
    stop.join()

    assert painted == [2]


def test_a_look_among_many_refused_rows_ends_after_a_hundred_and_rests(
    engine: Engine, walls: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.passed_over.REST", 1e9)
    tried: list[Any] = []
    claim_one = PassedOver._claim_one

    def noted(self: PassedOver[Wall], session: Session, lane: Lane[Wall], key: Any) -> bool:
        tried.append(key)
        return claim_one(self, session, lane, key)

    monkeypatch.setattr(PassedOver, "_claim_one", noted)
    add(walls, *["stuck"] * 120)
    refuse(walls, *range(1, 121))

    with pytest.raises(Exception, match=r"[Oo]ut of range"):
        paint(engine, JobQueue(Wall), lambda wall: None)

    assert len(tried) == 100  # although the claim was refused several times


def test_if_the_database_refuses_all_rows_none_is_passed_over(
    engine: Engine, walls: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add(walls, "red", "green")
    refuse(walls, 1, 2)

    with pytest.raises(Exception, match=r"[Oo]ut of range"):
        paint(engine, JobQueue(Wall), lambda wall: None)

    assert "cannot be claimed" not in caplog.text
    assert "refuses a claim" in caplog.text
