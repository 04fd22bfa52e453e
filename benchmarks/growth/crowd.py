"""Producers and consumers at once: latencies, and the errors of the database.

Each member is a process of :mod:`benchmarks.harness.host`. A consumer ends when it meets a job
whose payload is STOP; these jobs are inserted behind all others, once the producers are done.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
from sqlalchemy import event, insert, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from benchmarks.adapters.model import Job, connected
from benchmarks.adapters.ours import InSession
from benchmarks.adapters.shared_table import unfinished
from benchmarks.harness.databases import Database
from benchmarks.harness.processes import Answer, ask_all, check_each_ran_once, hosts
from benchmarks.harness.report import Column, Row
from benchmarks.harness.timing import latency
from sa_jobqueue import JobQueue, enqueue, is_transient
from sa_jobqueue.worker import Worker

STOP = "stop"

#: Jobs that a producer inserts in a transaction.
PRODUCED_AT_ONCE = 10

#: The pause of a consumer of verbs that found nothing.
PAUSE = 0.005


def _percentile(step: str, percentile: str) -> Column:
    def cell(row: Row) -> str:
        return f"{row[step][percentile]:.2f}" if row[step] else "-"

    return (f"{step} p50 ms" if percentile == "p50" else percentile, cell)


def _errors(head: str, which: str) -> Column:
    def cell(row: Row) -> str:
        counted = sorted(row[which].items())
        return ", ".join(f"{count} of {number}" for number, count in counted) or "0"

    return head, cell


COLUMNS: tuple[Column, ...] = (
    ("consumers by", "{way}"),
    ("batch", "{batch}"),
    ("jobs", "{jobs:,}"),
    ("jobs/s", lambda row: f"{row['jobs'] / row['seconds']:,.0f}"),
    *(_percentile(step, percent) for step in ("claim", "finish") for percent in ("p50", "p99")),
    _errors("errors inside", "inside"),
    _errors("surfaced", "surfaced"),
    ("per 10,000 jobs", "{surfaced_per_10_000:.2f}"),
    _errors("in producers", "producing"),
)


def number_of(error: DBAPIError) -> str:
    """Name a database's error as its manual does: SQLSTATE, a number, or SQLite's word."""
    orig: Any = error.orig
    for attribute in ("pgcode", "sqlstate", "sqlite_errorname"):
        if found := getattr(orig, attribute, None):
            return str(found)
    return str(orig.args[0])


class Member(InSession):
    """A process of the crowd.

    Attributes:
        inside: transient errors of the database by number, wherever they ended.
        surfaced: transient errors by number that came out of what is measured.
        last: when the last job was finished.
    """

    delete = False

    def open(self) -> None:
        self.inside: Counter[str] = Counter()
        self.surfaced: Counter[str] = Counter()
        self.last = time.monotonic()
        super().open()
        event.listen(self.engine, "handle_error", self._count_inside)

    def _count_inside(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if isinstance(error, DBAPIError) and is_transient(error):
            self.inside[number_of(error)] += 1

    def is_deadlock(self, error: Exception) -> bool:
        return isinstance(error, DBAPIError) and is_transient(error)

    def count_retry(self, error: Any) -> None:
        super().count_retry(error)
        self.surfaced[number_of(error)] += 1

    def counts(self, **more: Any) -> dict[str, Any]:
        """Return what was counted."""
        return {"inside": self.inside, "surfaced": self.surfaced, "last": self.last, **more}


class Producer(Member):
    """Inserts jobs, some in each transaction, with keys that the database gives."""

    def produce(self, jobs: int) -> dict[str, Any]:
        """Insert jobs."""
        for begin in range(0, jobs, PRODUCED_AT_ONCE):
            rows = [{"payload": "produced"}] * min(PRODUCED_AT_ONCE, jobs - begin)
            self.in_transaction(enqueue, self.connection, Job, rows)
        return self.counts()


class Verbs(Member):
    """Consumes by claim_rows() and complete(), each in a transaction of its own."""

    def consume(self) -> dict[str, Any]:
        """Claim and finish until a job says STOP."""
        self.run: list[int] = []
        self.claims: list[float] = []
        self.finishes: list[float] = []
        while self._turn():
            pass
        return self.counts(run=self.run, claims=self.claims, finishes=self.finishes)

    def _turn(self) -> bool:
        begun = time.monotonic()
        jobs = self.in_transaction(self.claim)
        if not jobs:
            time.sleep(PAUSE)
            return True
        claimed = time.monotonic()
        self.in_transaction(self.finish, jobs)
        self.last = time.monotonic()
        self.claims.append(claimed - begun)
        self.finishes.append(self.last - claimed)
        self.run += [job.id for job in jobs if job.payload != STOP]
        return all(job.payload != STOP for job in jobs)


class Workers(Member):
    """Consumes by a Worker with its defaults: with an Owner, a heartbeat, and reaping."""

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
        self.in_transaction(worker.run)
        return self.counts(run=run)


#: The ways to consume, by the word that the tables use.
CONSUMERS: dict[str, type[Member]] = {"verbs": Verbs, "Worker": Workers}


def measure_crowd(
    database: Database, way: str, *, batch: int, producers: int, consumers: int, jobs: int
) -> Row:
    """Let producers insert jobs while consumers run them.

    Args:
        way: by which the consumers claim, of :data:`CONSUMERS`.
        jobs: of each producer.

    Raises:
        JobsLost: not every job was run exactly once.
    """
    url, python = database.url, sys.executable
    with (
        hosts(consumers, python, _path(CONSUMERS[way]), url, batch) as consuming,
        hosts(producers, python, _path(Producer), url, batch) as producing,
    ):
        producing[0].ask("create")
        ask_all([*consuming, *producing], "open")
        for host in consuming:
            host.tell("consume")
        produced = ask_all(producing, f"produce {jobs}")
        with connected(url) as connection:
            # As many as all consumers can claim at once, so that each consumer meets one.
            connection.execute(insert(Job), [{"payload": STOP}] * (consumers * batch))
        consumed = [host.answer() for host in consuming]
    run = [number for answer in consumed for number in answer.result["run"]]
    with connected(url) as connection:
        inserted = list(connection.scalars(select(Job.id).where(Job.payload != STOP)))
        left = unfinished(connection, Job.payload != STOP)
    assert len(inserted) == jobs * producers
    check_each_ran_once(way, inserted, run, left)
    return crowd_row(way, batch, producers, produced, consumed)


def crowd_row(
    way: str, batch: int, producers: int, produced: Sequence[Answer], consumed: Sequence[Answer]
) -> Row:
    """Sum up a crowd.

    The time is from the first insert to the last finish. Errors are counted by number: inside the
    consumers, where a Worker tries again; those that came out of the verbs, or of the Worker; and
    those of the producers.
    """
    jobs = sum(len(answer.result["run"]) for answer in consumed)
    surfaced = _counted(consumed, "surfaced")
    crowd = {
        "way": way,
        "batch": batch,
        "producers": producers,
        "consumers": len(consumed),
        "jobs": jobs,
        "seconds": max(answer.result["last"] for answer in consumed)
        - min(answer.begun for answer in produced),
        "inside": _counted(consumed, "inside"),
        "surfaced": surfaced,
        "producing": _counted(produced, "surfaced"),
        "claim": _latency(consumed, "claims"),
        "finish": _latency(consumed, "finishes"),
        "surfaced_per_10_000": sum(surfaced.values()) * 10_000 / jobs,
    }
    click.echo(
        f"{way} batch {batch}: {jobs / crowd['seconds']:,.0f} jobs/s, "
        f"{sum(surfaced.values())} errors surfaced"
    )
    return crowd


def _path(member: type[Member]) -> str:
    return f"{__name__}:{member.__name__}"


def _counted(answers: Sequence[Answer], which: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer.result[which])
    return dict(total)


def _latency(answers: Sequence[Answer], which: str) -> dict[str, float] | None:
    seconds = [timed for answer in answers for timed in answer.result.get(which, ())]
    return latency(seconds) if seconds else None
