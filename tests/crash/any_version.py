"""A worker of one version of sa_jobqueue, beside workers of another.

    python any_version.py FOLDER URL NAME SECONDS JOBS

It takes the package in a folder, creates the tables that are missing, adds so many jobs, and works
until it is killed, with a look for jobs each so many seconds; with 0 it does not work. It uses what
every version has, and no module of the tests.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])  # before an installed version

from sqlalchemy import Engine, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sa_jobqueue
from sa_jobqueue import ConstantBackoff, JobMixin, JobQueue, RetryMixin
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    pass


class Job(JobMixin, RetryMixin, Base):
    """A job that one worker may refuse, or hold until it is killed."""

    __tablename__ = "any_version_job"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    refused_by: Mapped[str | None] = mapped_column(String(10))
    held_by: Mapped[str | None] = mapped_column(String(10))


class Handled(Base):
    """What each call of a handler writes that does its job."""

    __tablename__ = "any_version_handled"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    name: Mapped[str] = mapped_column(String(10))
    attempt: Mapped[int]


def add_jobs(engine: Engine, count: int = 1, **values: str) -> None:
    """Commit jobs."""
    with Session(engine) as session, session.begin():
        session.add_all(Job(max_attempts=1000, **values) for _ in range(count))


def work(engine: Engine, name: str, seconds: float) -> None:
    """Work under a name until somebody kills this process."""

    queue = JobQueue(
        Job, backoff=ConstantBackoff(timedelta(milliseconds=100)), lease=timedelta(hours=1)
    )

    @queue.handler
    def handle(job: Job) -> None:
        if job.refused_by == name:
            raise ValueError(f"{name} refuses this job")
        if job.held_by == name:
            print("holds", flush=True)  # noqa: T201 - for the test
            time.sleep(600)
        with Session(engine) as session, session.begin():
            session.add(Handled(job_id=job.id, name=name, attempt=job.attempts))

    poll, reap_every = timedelta(seconds=seconds), timedelta(milliseconds=500)
    Worker(engine, queue, concurrency=2, poll=poll, reap_every=reap_every).run()


if __name__ == "__main__":
    url, name, seconds, jobs = sys.argv[2:]
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    add_jobs(engine, int(jobs))
    print(Path(sa_jobqueue.__file__).parent, flush=True)  # noqa: T201 - for the test
    if float(seconds):
        work(engine, name, float(seconds))
