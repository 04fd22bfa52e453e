"""Tasks: what they cost beside the same handler on a table of its own.

All jobs are added to one session and committed, then one Worker handles them. The table of its own
has the same mixins, and the one argument as a column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from sqlalchemy import Engine, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.adapters.model import make_engine
from benchmarks.harness.command import ROUNDS, benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, Row, table
from benchmarks.harness.rounds import in_turn, median_ratio
from benchmarks.harness.timing import Timed, timed
from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin
from sa_jobqueue.tasks import TaskMixin, TaskQueue
from sa_jobqueue.worker import Worker

if __name__ == "__main__":
    run_by_name(__spec__.name)


class Base(DeclarativeBase):
    """The base of the benchmark's tables."""


class Own(JobMixin, PriorityMixin, RetryMixin, Base):
    """A job of a table of its own."""

    __tablename__ = "benchmark_tasks_own"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Task(TaskMixin, Base):
    """A task."""

    __tablename__ = "benchmark_tasks_task"
    id: Mapped[int] = mapped_column(primary_key=True)


own, tasks = JobQueue(Own), TaskQueue(Task)


@own.handler
def _handle(job: Own) -> None:
    job.number * 2


@tasks.task
def without_result(number: int) -> None:
    """Do what the other handlers do, and keep nothing."""
    number * 2


@tasks.task
def with_result(number: int) -> int:
    """Do what the other handlers do, and keep the result."""
    return number * 2


Enqueue = Callable[[Session, int], object]

WHAT = ("enqueued", "handled")
OWN = "own table"
WAYS: dict[str, tuple[type[Any], Any, Enqueue]] = {
    OWN: (Own, own, lambda session, number: session.add(Own(number=number))),
    "task": (Task, tasks, without_result.enqueue),
    "task with a result": (Task, tasks, with_result.enqueue),
}


def tables(figures: Figures) -> str:
    """Write a row for each way."""
    columns = [("", "{way}")]
    for what in WHAT:
        columns += [(f"{what}/s", f"{{{what}:,.0f}}"), ("time", f"{{{what}_time:.2f}}")]
        columns.append(("CPU of the client", f"{{{what}_cpu:.2f}}"))
    return table(columns, figures["results"])


@benchmark(number("--jobs", 10_000), ROUNDS, tables=tables)
def main(database: Database, *, jobs: int, rounds: int) -> Figures:
    """Enqueue and handle tasks; time and CPU are divided by those of the own table."""
    engine = make_engine(database.url)
    Base.metadata.create_all(engine)
    runs = in_turn(
        {way: partial(run, engine, database, jobs, *how) for way, how in WAYS.items()}, rounds
    )
    return {"results": [_row(way, jobs, runs) for way in WAYS]}


def run(
    engine: Engine, database: Database, jobs: int, entity: type[Any], lane: Any, enqueue: Enqueue
) -> tuple[Timed, Timed]:
    """Return how long jobs took to be enqueued, and to be handled."""
    with engine.begin() as connection:
        connection.execute(delete(entity))
    database.settle()

    def enqueue_all() -> None:
        with Session(engine) as session, session.begin():
            for number in range(jobs):
                enqueue(session, number)

    worker = Worker(engine, lane, limit=100, drain=True)
    return timed(enqueue_all), timed(worker.run)


def _row(way: str, jobs: int, runs: dict[str, list[tuple[Timed, Timed]]]) -> Row:
    row: Row = {"way": way}
    for what, own, base in zip(
        WHAT, zip(*runs[way], strict=True), zip(*runs[OWN], strict=True), strict=True
    ):
        row[what] = round(jobs / median(each.seconds for each in own))
        row[f"{what}_time"] = median_ratio(*([each.seconds for each in of] for of in (own, base)))
        row[f"{what}_cpu"] = median_ratio(*([each.cpu for each in of] for of in (own, base)))
    return row
