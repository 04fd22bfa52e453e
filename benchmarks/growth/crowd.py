"""Producers and consumers at once: latencies, and which errors the engine gave.

Each member is a process of :mod:`benchmarks.harness.host`. Consumers end when they meet a job whose
payload says so; such jobs are inserted behind all others, once the producers are done.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import event, func, insert, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from benchmarks.adapters.model import Base, Job, make_engine
from benchmarks.adapters.shared_table import UNFINISHED
from benchmarks.drain import JobsLost
from benchmarks.growth.sizes import Latency
from benchmarks.harness.processes import Answer, Host, hosts
from sa_jobqueue import JobQueue, enqueue, is_transient
from sa_jobqueue.worker import Worker

STOP = "stop"

#: Jobs that a producer inserts in one transaction.
PRODUCED_AT_ONCE = 10

#: The pause of a consumer of verbs that found nothing.
PAUSE = 0.005

R = TypeVar("R")


def number_of(error: DBAPIError) -> str:
    """Name an engine's error as its manual does: SQLSTATE, a number, or SQLite's word."""
    orig: Any = error.orig
    for attribute in ("pgcode", "sqlstate", "sqlite_errorname"):
        if found := getattr(orig, attribute, None):
            return str(found)
    return str(orig.args[0])


class Member:
    """One process of the crowd.

    Attributes:
        inside: transient errors of the engine, wherever they ended, by number.
        surfaced: those that came out of what is measured.
        last: when the last job was finished.
    """

    def __init__(self, url: str, batch: int) -> None:
        self.engine = make_engine(url)
        self.batch = batch
        self.retries = 0
        self.inside: Counter[str] = Counter()
        self.surfaced: Counter[str] = Counter()
        self.last = time.monotonic()
        event.listen(self.engine, "handle_error", self._see)
        with self.engine.connect() as connection:
            connection.execute(select(Job.id).limit(1)).all()

    def _see(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if isinstance(error, DBAPIError) and is_transient(error):
            self.inside[number_of(error)] += 1

    def again(self, work: Callable[[], R]) -> R:
        """Do something until no transient error comes out of it; count those."""
        while True:
            try:
                return work()
            except DBAPIError as error:
                if not is_transient(error):
                    raise
                self.surfaced[number_of(error)] += 1
                self.retries += 1

    def told(self, **more: Any) -> dict[str, Any]:
        """Say what was seen."""
        return {"inside": self.inside, "surfaced": self.surfaced, "last": self.last, **more}


class Producer(Member):
    """Inserts jobs, some in each transaction, with keys that the engine gives."""

    def produce(self, jobs: int) -> dict[str, Any]:
        """Insert jobs."""
        for begin in range(0, jobs, PRODUCED_AT_ONCE):
            count = min(PRODUCED_AT_ONCE, jobs - begin)
            self.again(lambda count=count: self._insert(count))  # type: ignore[misc]  # mypy and defaults of lambdas
        return self.told()

    def _insert(self, jobs: int) -> None:
        with Session(self.engine) as session:
            enqueue(session, Job, [{"payload": "produced"}] * jobs)
            session.commit()


class Verbs(Member):
    """Consumes by claim_rows() and complete(), each in a transaction of its own."""

    def consume(self) -> dict[str, Any]:
        """Claim and finish until told to stop."""
        queue = JobQueue(Job)
        self.run: list[int] = []
        self.claims: list[float] = []
        self.finishes: list[float] = []
        with Session(self.engine) as self.session:
            while self._turn(queue):
                pass
        return self.told(run=self.run, claims=self.claims, finishes=self.finishes)

    def _turn(self, queue: JobQueue[Job]) -> bool:
        begun = time.monotonic()
        jobs = self._committed(
            lambda: queue.claim_rows(self.session, owner=f"consumer-{id(self)}", limit=self.batch)
        )
        if not jobs:
            time.sleep(PAUSE)
            return True
        claimed = time.monotonic()
        self._committed(lambda: queue.complete(self.session, jobs))
        self.last = time.monotonic()
        self.claims.append(claimed - begun)
        self.finishes.append(self.last - claimed)
        self.run += [job.id for job in jobs if job.payload != STOP]
        return all(job.payload != STOP for job in jobs)

    def _committed(self, work: Callable[[], R]) -> R:
        def transaction() -> R:
            with self._undone():
                result = work()
                self.session.commit()
                return result

        return self.again(transaction)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError:
            self.session.rollback()
            raise


class Workers(Member):
    """Consumes by a Worker as it comes: with an Owner, a heartbeat, and reaping."""

    def consume(self) -> dict[str, Any]:
        """Run the worker until it meets the job that stops it."""
        run: list[int] = []

        def handle(job: Job) -> None:
            if job.payload == STOP:
                worker.stop()

        def done(job: Job, outcome: object) -> None:
            if job.payload != STOP:
                self.last = time.monotonic()
                run.append(job.id)

        worker = Worker(self.engine, JobQueue(Job), handle, limit=self.batch, on_outcome=done)
        self.again(worker.run)
        return self.told(run=run)


#: The ways to consume, by the word that the tables use.
CONSUMERS: dict[str, type[Member]] = {"verbs": Verbs, "Worker": Workers}


@dataclass(frozen=True)
class Crowd:
    """What came of producers and consumers at once.

    Attributes:
        way: by which the consumers claim, of :data:`CONSUMERS`.
        jobs: how many were inserted, and each run once.
        seconds: from the first insert to the last finish.
        inside: transient errors in consumers, by number; a Worker tries again.
        surfaced: those that came out of the verbs, or of the Worker.
        producing: those of the producers.
        claim, finish: of verbs.
    """

    way: str
    batch: int
    producers: int
    consumers: int
    jobs: int
    seconds: float
    inside: dict[str, int]
    surfaced: dict[str, int]
    producing: dict[str, int]
    claim: Latency | None
    finish: Latency | None

    @property
    def surfaced_per_10_000(self) -> float:
        """Errors that surfaced, by 10,000 jobs."""
        return sum(self.surfaced.values()) * 10_000 / self.jobs


def crowd(url: str, way: str, *, batch: int, producers: int, consumers: int, jobs: int) -> Crowd:
    """Let producers insert jobs while consumers run them.

    Args:
        jobs: of each producer.

    Raises:
        JobsLost: not each job was run exactly once.
    """
    _empty(url)
    with (
        hosts(consumers, sys.executable, _path(CONSUMERS[way]), url, batch) as consuming,
        hosts(producers, sys.executable, _path(Producer), url, batch) as producing,
    ):
        for host in consuming:
            host.tell("consume")
        produced = _ask(producing, f"produce {jobs}")
        _insert_stops(url, consumers * batch)
        consumed = [host.answer() for host in consuming]
    _check(url, jobs * producers, consumed)
    return Crowd(
        way=way,
        batch=batch,
        producers=producers,
        consumers=consumers,
        jobs=jobs * producers,
        seconds=max(answer.result["last"] for answer in consumed)
        - min(answer.begun for answer in produced),
        inside=_counted(consumed, "inside"),
        surfaced=_counted(consumed, "surfaced"),
        producing=_counted(produced, "surfaced"),
        claim=_latency(consumed, "claims"),
        finish=_latency(consumed, "finishes"),
    )


def _path(member: type[Member]) -> str:
    return f"{__name__}:{member.__name__}"


def _ask(members: list[Host], command: str) -> list[Answer]:
    for host in members:
        host.tell(command)
    return [host.answer() for host in members]


def _empty(url: str) -> None:
    engine = make_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


def _insert_stops(url: str, count: int) -> None:
    """Insert as many as all consumers could claim at once: each meets one."""
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(insert(Job), [{"payload": STOP}] * count)
    engine.dispose()


def _check(url: str, jobs: int, consumed: list[Answer]) -> None:
    run = Counter(number for answer in consumed for number in answer.result["run"])
    twice = sum(count > 1 for count in run.values())
    unfinished = select(func.count()).where(Job.status.in_(UNFINISHED), Job.payload != STOP)
    engine = make_engine(url)
    with engine.connect() as connection:
        left = connection.execute(unfinished).scalar_one()
    engine.dispose()
    if twice or left or len(run) != jobs:
        raise JobsLost(f"of {jobs} jobs {twice} were run twice, {len(run)} at all, {left} are left")


def _counted(answers: list[Answer], which: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer.result[which])
    return dict(total)


def _latency(answers: list[Answer], which: str) -> Latency | None:
    timed = [seconds for answer in answers for seconds in answer.result.get(which, ())]
    return Latency.of(timed) if timed else None
