"""The jobs of a run, and a table of the calls of their handlers, which is a proof of its own."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Engine, LargeBinary, String, func, insert, select
from sqlalchemy.exc import IntegrityError, InterfaceError, InternalError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ConstantBackoff, JobMixin, JobQueue, RetryMixin
from sa_jobqueue.groups import GroupMixin, WaitingMixin, after
from sa_jobqueue.worker.deadlines import Deadlines
from tests.models import Task
from tests.support import make_engine

LEASE = timedelta(seconds=2)
REAP_EVERY = timedelta(milliseconds=500)
POLL = timedelta(milliseconds=50)

#: How long a worker's call to its database may take, and a call of a handler's own.
DEADLINE = timedelta(seconds=2)

#: Seconds that a statement waits for a lock: a worker's deadline is longer than that.
LOCK_WAIT = 1

#: Of so many calls one raises, after it has been noted.
RAISES_ONE_OF = 20

#: The parts of a report; of so many inserts of a producer, from the first on, one adds a report.
PARTS = 50
GROUPS_ONE_OF = 15

#: What passes: a lost connection, a deadlock, a busy database.
PASSING = (OperationalError, InterfaceError, InternalError)


class ChaosBase(DeclarativeBase):
    pass


class Handled(ChaosBase):
    """A call of the handler.

    Attributes:
        id: made for the call, so that it is noted once even where a COMMIT's answer is lost.
        attempt: the job's attempt; no two calls of a job have the same.
        player: the process.
        raised: the handler raises after this, so the job is tried again.
    """

    __tablename__ = "handled"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job: Mapped[int]
    attempt: Mapped[int]
    player: Mapped[str] = mapped_column(String(40))
    raised: Mapped[bool]


class Booking(JobMixin, RetryMixin, ChaosBase):
    """A job whose effect is in the transaction of its finish."""

    __tablename__ = "booking"
    id: Mapped[int] = mapped_column(primary_key=True)


class Entry(ChaosBase):
    """The effect of a booking: each has exactly one, whatever happens."""

    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    booking: Mapped[int]


class Part(GroupMixin, JobMixin, RetryMixin, ChaosBase):
    """A member of the group that a report waits for."""

    __tablename__ = "part"
    id: Mapped[int] = mapped_column(primary_key=True)
    report: Mapped[str] = mapped_column(String(32))


class Report(WaitingMixin, JobMixin, RetryMixin, ChaosBase):
    """A job that waits for a group."""

    __tablename__ = "report"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)


class Bound(ChaosBase):
    """The effect of a report: each has exactly one, which knows of no unfinished part."""

    __tablename__ = "bound"
    id: Mapped[int] = mapped_column(primary_key=True)
    report: Mapped[str] = mapped_column(String(32))
    unfinished: Mapped[int]


class Ballast(ChaosBase):
    """What is written to use up the room of a full disk."""

    __tablename__ = "ballast"
    id: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary(1_000_000))


class Planned(Exception):
    """What a handler raises now and then."""


def isolation(url: URL) -> dict[str, Any]:
    """Return the options of a run's engines."""
    sqlite = url.get_backend_name() == "sqlite"
    return {} if sqlite else {"isolation_level": "READ COMMITTED"}


def open_engine(url: URL) -> Engine:
    """Make an engine of a run: what it has committed outlives a crash of the server."""
    return make_engine(url, durable=True, lock_wait=LOCK_WAIT, **isolation(url))


def new_queue() -> JobQueue[Task]:
    """Make the queue of a run: its lease and its delays are short."""
    return JobQueue(Task, lease=LEASE, backoff=ConstantBackoff(timedelta(milliseconds=100)))


def group(session: Session) -> None:
    """Add a report, and the parts that it waits for."""
    report = Report(id=uuid.uuid4().hex)
    after(session, [Part(report=report.id) for _ in range(PARTS)], then=report)


def book(session: Session, booking: Booking) -> None:
    """Add the entry of a booking."""
    session.add(Entry(booking=booking.id))


def draw(session: Session, part: Part) -> None:
    """Leave no effect: the finish is what a report waits for."""


def bind(session: Session, report: Report) -> None:
    """Note that a report has run, and how many parts were unfinished."""
    count = select(func.count()).select_from(Part)
    of_report = count.where(Part.report == report.id, Part.status != "done")
    session.add(Bound(report=report.id, unfinished=session.execute(of_report).scalar_one()))


Work = Callable[[Session, Any], Any]


def raising(work: Work) -> Work:
    """Have a handler raise now and then after its effect, which must not stay.

    A worker's deadline is not for the statements of its handlers, so they have one of their own.
    """

    def work_or_raise(session: Session, job: Any) -> None:
        with Deadlines(session.get_bind().engine, DEADLINE):
            work(session, job)
            session.flush()
        if random.randrange(RAISES_ONE_OF) == 0:
            raise Planned

    return work_or_raise


def awaited(work: Work) -> Callable[..., Any]:
    """As :func:`raising`, in an event loop."""

    async def work_awaited(session: AsyncSession, job: Any) -> None:
        await session.run_sync(raising(work), job)

    return work_awaited


def queues_of(handler: Callable[..., Any], way: Callable[[Work], Any]) -> list[JobQueue[Any]]:
    """Make the queues of a worker, with their handlers; reports are claimed before parts."""
    tasks = new_queue()
    tasks.handler(handler)
    queues: list[JobQueue[Any]] = [tasks]
    for entity, work in ((Booking, book), (Part, draw), (Report, bind)):
        backoff = ConstantBackoff(timedelta(milliseconds=100))
        queues.append(JobQueue(entity, lease=LEASE, backoff=backoff))
        queues[-1].handler(transactional=True)(way(work))
    return [queues.pop(), *queues]


def create_tables(engine: Engine) -> None:
    """Create the table of the jobs, and that of the calls."""
    Task.metadata.create_all(engine, tables=[Task.metadata.tables["task"]])
    ChaosBase.metadata.create_all(engine)


@dataclass
class Calls:
    """Notes the calls of a player's handler, each in a transaction of its own."""

    engine: Engine
    player: str
    dice: random.Random
    raises: bool = True

    @classmethod
    def of(cls, url: URL, player: str, seed: int, *, raises: bool = True) -> Calls:
        """Note over connections of their own, on which no fault is injected."""
        return cls(open_engine(url), player, random.Random(seed), raises)

    def note(self, job: int, attempt: int) -> None:
        """Note a call, and raise now and then."""
        raised = self.raises and self.dice.randrange(RAISES_ONE_OF) == 0
        row = {"id": uuid.uuid4().hex, "job": job, "attempt": attempt}
        self._insert({**row, "player": self.player, "raised": raised})
        if raised:
            raise Planned

    def work_time(self) -> float:
        """Return how many seconds a job takes: milliseconds, and at times long enough to be hit."""
        return self.dice.uniform(0, 0.01) if self.dice.randrange(8) else self.dice.uniform(0, 0.4)

    def _insert(self, row: dict[str, Any]) -> None:
        while True:
            try:
                with self.engine.begin() as connection:
                    connection.execute(insert(Handled), row)
            except PASSING:
                self.engine.dispose()  # another connection may lead to a server that takes writes
                time.sleep(0.05)
                continue
            except IntegrityError:  # it was committed before, and only the answer was lost
                pass
            return
