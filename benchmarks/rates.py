"""A rate: four workers in processes of their own, 10 jobs a second for a minute.

    python -m benchmarks rates --url postgresql+psycopg2://user@host/database

It prints how many jobs began, how many more the rate would have allowed, the most starts in any
second, and the time from a job's claim to the start of its handler. The server's clock must be that
of this machine. ``--keys 3`` gives each of three customers a rate of its own.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from bisect import bisect_left
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, enqueue
from sa_jobqueue.databases.clock import as_utc
from sa_jobqueue.rates import Rate, rate_table
from sa_jobqueue.worker import Worker

PROCESSES, THREADS = 4, 4


class Base(DeclarativeBase):
    """The base of the benchmark's table."""


class Mail(JobMixin, Base):
    """A job of one of several customers."""

    __tablename__ = "benchmark_rates_mail"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]


rate_table(Base.metadata, name="benchmark_rates")


def work(url: str, count: int, by_key: bool, seconds: float, told: Any) -> None:
    """Run a worker for some seconds; tell the customer, claim and start of each job."""
    starts: list[tuple[int, float, float]] = []
    queue = JobQueue(
        Mail,
        rate=Rate(count, per=timedelta(seconds=1)),
        rate_by=Mail.customer if by_key else None,
    )

    def handle(job: Mail) -> None:
        assert job.owner_date is not None
        starts.append((job.customer, as_utc(job.owner_date).timestamp(), time.time()))

    worker = Worker(create_engine(url), queue, handle, concurrency=THREADS)
    threading.Timer(seconds, worker.stop).start()
    worker.run()
    told.put(starts)


@click.command("rates")
@click.option("--url", default="sqlite:///benchmark_rates.db", show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--count", default=10, show_default=True, help="Jobs in a second.")
@click.option("--keys", default=1, show_default=True, help="So many customers have a rate each.")
def main(url: str, seconds: float, count: int, keys: int) -> None:
    """Let four workers handle jobs at a rate, and print what they have done."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    jobs = int(count * (seconds + 10) * keys)
    with Session(engine) as session, session.begin():
        enqueue(session, Mail, [{"customer": number % keys} for number in range(jobs)])

    spawned = multiprocessing.get_context("spawn")
    told = spawned.Queue()
    arguments = (url, count, keys > 1, seconds + 5, told)
    processes = [spawned.Process(target=work, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    starts = sorted(start for _ in processes for start in told.get())
    for process in processes:
        process.join()
    Base.metadata.drop_all(engine)

    rate = Rate(count, per=timedelta(seconds=1))
    for key in range(keys):
        claims = [claimed for customer, claimed, _ in starts if customer == key]
        within = [claimed for claimed in claims if claimed < claims[0] + seconds]
        begun = sorted(begun for customer, _, begun in starts if customer == key)
        late = sorted(begun - claimed for customer, claimed, begun in starts if customer == key)
        most = max(bisect_left(begun, at + 1.0) - number for number, at in enumerate(begun))
        click.echo(
            f"{engine.dialect.name} {key}: {len(within)} jobs in {seconds:.0f} s, of "
            f"{count * seconds:.0f} and a burst of {rate.burst}; most starts in a "
            f"second: {most}; from claim to start: p50 {late[len(late) // 2] * 1000:.1f} ms, "
            f"p99 {late[len(late) * 99 // 100] * 1000:.1f} ms, most {late[-1] * 1000:.1f} ms"
        )


if __name__ == "__main__":
    main()
