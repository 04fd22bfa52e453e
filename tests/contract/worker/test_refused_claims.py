"""Rows that cannot be claimed, and queues whose claims are refused, hold up no other job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    CheckConstraint,
    Dialect,
    Engine,
    ForeignKey,
    String,
    TypeDecorator,
    insert,
    text,
    update,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin
from sa_jobqueue.events import listen, remove
from tests.clock import Clock
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import failing, heard
from tests.models import Task
from tests.support import make_engine, until, with_empty_tables

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

UNKNOWN = "no colour that this version knows"


class Colour(TypeDecorator[str]):
    """A colour, as a version of the application knows it."""

    impl = String(20)
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value == "infrared":
            raise LookupError(f"{value!r} is {UNKNOWN}")
        return value


class Base(DeclarativeBase):
    """The base of the painter's tables."""


class Tin(Base):
    """A tin of paint."""

    __tablename__ = "passed_tin"
    id: Mapped[int] = mapped_column(primary_key=True)
    colour: Mapped[str] = mapped_column(Colour)


class Wall(PriorityMixin, RetryMixin, JobMixin, Base):
    """A wall to paint, perhaps with the paint of a tin; the table refuses claims of some."""

    __tablename__ = "passed_wall"
    __table_args__ = (CheckConstraint("NOT (status = 'claimed' AND colour = 'refused')"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    colour: Mapped[str] = mapped_column(Colour)
    tin_id: Mapped[int | None] = mapped_column(ForeignKey(Tin.id))
    tin: Mapped[Tin | None] = relationship()


@pytest.fixture(autouse=True)
def _painter(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)


@pytest.fixture
def impatient(workers: Workers, clock: Clock) -> Iterator[Clock]:
    """Let some minutes pass with each refused transaction."""
    with heard(workers.engine, "rollback", lambda connection: clock.jump(160)):
        yield clock


def add(workers: Workers, *colours: str) -> None:
    """Add walls; each has its number as its name."""
    with workers.plain.begin() as connection:
        connection.execute(
            insert(Wall),
            [
                {"id": number, "name": str(number), "colour": colour}
                for number, colour in enumerate(colours, start=1)
            ],
        )


def left(workers: Workers) -> list[tuple[int, str, int]]:
    """The walls that are not painted: number, status and attempts."""
    rows = workers.rows(Wall).items()
    return sorted((int(name), *row[:2]) for name, row in rows if row[0] != "done")


def passed_over(texts: list[str]) -> list[str]:
    """The numbers of the walls that the log says cannot be claimed."""
    told = [text for text in texts if "cannot be claimed" in text]
    return sorted(re.findall(r"\d+", " ".join(text.split(" cannot ")[0] for text in told)))


# Some rows


@pytest.mark.parametrize(("limit", "load"), [(1, joinedload), (3, selectinload), (10, joinedload)])
def test_the_other_jobs_are_handled_and_the_rows_stay_as_they_were(
    workers: Workers, caplog: pytest.LogCaptureFixture, limit: int, load: Any
) -> None:
    """A row that is loaded with its job counts too; listeners are told of claims alone."""
    add(workers, "red", "infrared", "blue", "refused", "infrared", *["green"] * 4)
    workers.execute(insert(Tin).values(id=1, colour="infrared"))
    workers.execute(update(Wall).where(Wall.id == 8).values(tin_id=1))
    queue, told = workers.queue(Wall), list[Any]()

    def hear(event: Any) -> None:
        told.extend(str(job.key[0]) for job in event.jobs)

    listen(queue, "after_claim", hear)
    workers.drain(queue, limit=limit, options=[load(Wall.tin)])
    remove(queue, "after_claim", hear)

    assert sorted(workers.handled) == sorted(told) == ["1", "3", "6", "7", "9"]
    assert left(workers) == [(number, "unclaimed", 0) for number in (2, 4, 5, 8)]
    assert passed_over(caplog.messages) == ["2", "4", "5", "8"]
    assert UNKNOWN in caplog.text
    assert "refuses" not in caplog.text


@pytest.mark.only_on("postgresql")
def test_a_time_that_the_driver_cannot_read_holds_up_no_other_job(
    threads: Workers, db_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg2 reads "infinity" as the last time that Python knows."""
    add(threads, "red", "red", "red")
    threads.execute(text("UPDATE passed_wall SET run_at = '-infinity' WHERE id = 2"))
    driver = make_engine(db_url.set(drivername="postgresql+psycopg"))

    threads.drain(Wall, bind=driver, limit=3)
    driver.dispose()

    assert threads.handled == ["1", "3"]
    assert left(threads) == [(2, "unclaimed", 0)]
    assert passed_over(caplog.messages) == ["2"]


@ANYWHERE
@pytest.mark.parametrize("bad", ["infrared", "refused"])
def test_a_row_is_tried_again_after_some_minutes_and_logged_once(
    workers: Workers, clock: Clock, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    add(workers, bad, *["red"] * 6)

    def paint(wall: Wall) -> None:
        workers.note(wall)
        if wall.name == "5":
            workers.execute(update(Wall).where(Wall.id == 1).values(colour="black"))
        if wall.name in "35":
            clock.jump(310)

    workers.drain(workers.queue(Wall, paint), owner="w", reap_every=None)

    assert workers.handled.index("1") in (4, 5)
    assert sorted(workers.handled) == list("1234567")
    assert passed_over(caplog.messages) == ["1"]


# All rows


@ANYWHERE
@pytest.mark.parametrize(
    ("colours", "limits"),
    [
        (["infrared", "red"], {"strict_order": True}),
        (["infrared", "red"], {"serial_by": Wall.tin_id}),
        (["refused"] * 2, {}),
    ],
    ids=["strict_order", "serial_by", "all"],
)
def test_where_no_row_is_to_be_passed_over_the_worker_ends(
    workers: Workers,
    impatient: Clock,
    caplog: pytest.LogCaptureFixture,
    colours: list[str],
    limits: dict[str, Any],
) -> None:
    add(workers, *colours)

    with pytest.raises(Exception, match=rf"{UNKNOWN}|(?i:constraint)"):
        workers.drain(workers.queue(Wall, **limits), limit=2, owner="w", reap_every=None)

    assert impatient.ahead > 300
    assert (1, "unclaimed", 0) in left(workers)
    assert "cannot be claimed" not in caplog.text
    assert caplog.text.count("refuses a claim") == 1


# Several queues


def of_walls(text: str) -> bool:
    return "passed_wall" in text


def unknown_street() -> Exception:
    return LookupError("no such street")


@pytest.mark.parametrize("options", [{}, {"serial_by": Wall.tin_id}], ids=["plain", "serial"])
def test_the_other_queues_are_served_until_the_worker_ends_however_busy_they_are(
    workers: Workers,
    impatient: Clock,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    add(workers, "refused", "refused")
    workers.add("0")

    def handle(task: Task) -> None:
        workers.note(task)
        workers.add(str(len(workers.handled)))

    queues = [workers.queue(Task, handle), workers.queue(Wall, **options)]
    with pytest.raises(Exception, match=r"(?i)constraint"):
        workers.run(workers.make(queues, limit=5, owner="w", reap_every=None))

    assert "claimed" not in workers.statuses().values()
    assert caplog.text.count("refuses a claim") == 1


@ANYWHERE
def test_a_queue_that_is_refused_is_left_alone_for_growing_pauses(workers: Workers) -> None:
    add(workers, "red")
    workers.add(*map(str, range(60)))

    with (
        failing(workers.engine, of_walls, unknown_street) as met,
        workers.running([workers.queue(Wall), workers.queue(Task)], owner="w", reap_every=None),
    ):
        until(lambda: len(workers.handled) == 60)
        assert 1 <= len(met) < 60  # of a hundred and more turns

    assert set(workers.statuses().values()) == {"done"}


# One queue


@ANYWHERE
def test_a_claim_that_ends_the_run_costs_no_running_handler_its_finish(
    workers: Workers, impatient: Clock
) -> None:
    workers.add("a")

    def handle(task: Task) -> None:
        workers.note(task)
        until(lambda: impatient.ahead > 320)  # the run ends meanwhile

    tasks, walls = workers.queue(Task, handle), workers.queue(Wall)
    with (
        failing(workers.engine, lambda text: workers.handled and of_walls(text), unknown_street),
        pytest.raises(LookupError, match="no such street"),
    ):
        workers.run(workers.make([tasks, walls], concurrency=2, owner="w", reap_every=None))

    assert workers.statuses() == {"a": "done"}
