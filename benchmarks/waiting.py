"""wait(): how long after the end of its handler a job is known to be done, and by how many looks.

So many threads of one process enqueue a job each and wait for it. Another process has an idle
Worker; its handlers sleep as long as they are told.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from typing import Any

from sqlalchemy import Double, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.adapters.model import make_engine
from benchmarks.harness.command import benchmark, number, numbers, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, Row, table
from sa_jobqueue import JobMixin, JobQueue, wait
from sa_jobqueue.worker import Done, Worker

if __name__ == "__main__":
    run_by_name(__spec__.name)

LONGEST = timedelta(minutes=5)


class Base(DeclarativeBase):
    """The base of the benchmark's table."""


class Nap(JobMixin, Base):
    """A job that sleeps."""

    __tablename__ = "benchmark_waiting_nap"
    id: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    ended: Mapped[float | None] = mapped_column(Double)


naps = JobQueue(Nap)


@naps.handler
def _sleep(nap: Nap) -> Done:
    time.sleep(nap.seconds)
    return Done({Nap.ended: time.time()})


def work(url: str) -> None:
    """Run a worker until the process is ended."""
    Worker(make_engine(url), naps, limit=100, concurrency=100, poll=timedelta(seconds=0.05)).run()


def tables(figures: Figures) -> str:
    """Write a row for each number of waiters and each nap."""
    columns = (
        ("waiters", "{waiters}"),
        ("each job takes", "{seconds} s"),
        ("known later by, p50", "{p50:.0f} ms"),
        ("most", "{most:.0f} ms"),
        ("looks for each job", "{looks:.1f}"),
    )
    return table(columns, figures["results"])


@benchmark(
    numbers("--waiters", "1,10,100"),
    numbers("--milliseconds", "10,100,3000"),
    number("--rounds", 3),
    tables=tables,
)
def main(
    database: Database, *, waiters: tuple[int, ...], milliseconds: tuple[int, ...], rounds: int
) -> Figures:
    """Wait for jobs, and measure how late their ends are known."""
    engine = make_engine(database.url, pool_size=max(waiters), max_overflow=10)
    Base.metadata.create_all(engine)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(database.url,))
    process.start()
    try:
        sizes = [(many, each / 1_000) for each in milliseconds for many in waiters]
        _run(engine, 1, 0.0)  # the worker has begun
        return {"results": [_row(engine, *size, rounds) for size in sizes]}
    finally:
        process.terminate()
        process.join()


def _row(engine: Any, waiters: int, seconds: float, rounds: int) -> Row:
    looks = [0]

    def count(*_: object) -> None:
        looks[0] += 1

    event.listen(engine, "after_cursor_execute", count)
    late = [one * 1_000 for _ in range(rounds) for one in _run(engine, waiters, seconds)]
    event.remove(engine, "after_cursor_execute", count)
    figures = {"p50": median(late), "most": max(late)}
    # One statement is the job's INSERT.
    return {"waiters": waiters, "seconds": seconds, **figures, "looks": looks[0] / len(late) - 1}


def _run(engine: Any, waiters: int, seconds: float) -> list[float]:
    def enqueue_and_wait(_: int) -> float:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            session.add(nap := Nap(seconds=seconds))
        done = wait(engine, nap, timeout=LONGEST)
        assert done is not None
        assert done.ended is not None
        return time.time() - done.ended

    with ThreadPoolExecutor(waiters) as threads:
        return list(threads.map(enqueue_and_wait, range(waiters)))
