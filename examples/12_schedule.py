"""Two workers run a schedule, and one of them is killed: each tick still becomes one job.

    python examples/12_schedule.py
    python examples/12_schedule.py --url mysql+pymysql://user@host/database

The queue declares a job for each second. Two processes work on the queue, and both run its
schedule; neither is a leader. The example needs the extra `schedules`. The comment at the end
shows the output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, ScheduleMixin
from sa_jobqueue.schedules import Schedules
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    """The base of the application's tables."""


class Measurement(JobMixin, ScheduleMixin, Base):
    """A measurement to take at its time; run_at is the tick of the schedule."""

    __tablename__ = "measurement"
    id: Mapped[int] = mapped_column(primary_key=True)


schedules = Schedules(Base.metadata)  # the table job_schedules

measurements = JobQueue(Measurement)

# missed="all": each tick that comes while no worker runs gets its job later.
measurements.every("* * * * * *", name="each second", missed="all")


@measurements.handler
def measure(measurement: Measurement) -> None:
    """Take a measurement."""


def work(url: str) -> None:
    """Work until killed."""
    Worker(create_engine(url), measurements, poll=timedelta(milliseconds=200)).run()


def wait_for(engine: Engine, count: int) -> None:
    """Wait until this number of measurements is done."""
    done = select(func.count()).where(Measurement.status == "done")
    while True:
        with Session(engine) as session:
            if session.scalars(done).one() >= count:
                return
        time.sleep(0.1)


def ticks_of(engine: Engine) -> Counter[datetime]:
    """Return how many jobs each tick has."""
    with Session(engine) as session:
        return Counter(session.scalars(select(Measurement.run_at)))


def run(url: str) -> None:
    """Run two workers, and kill one of them."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(url,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    wait_for(engine, 3)
    print("two workers take a measurement each second")

    workers[0].kill()
    workers[0].join()
    print("one of them is killed")
    wait_for(engine, len(ticks_of(engine)) + 4)
    workers[1].kill()
    workers[1].join()

    check(ticks_of(engine))
    Base.metadata.drop_all(engine)
    engine.dispose()


def check(ticks: Counter[datetime]) -> None:
    """Tell whether each second between the first tick and the last has one job."""
    first, last = min(ticks), max(ticks)
    seconds = (last - first) // timedelta(seconds=1) + 1
    missing = [tick for n in range(seconds) if (tick := first + timedelta(seconds=n)) not in ticks]
    print(f"ticks without a job: {len(missing)}")
    print(f"ticks with two jobs: {sum(count > 1 for count in ticks.values())}")


def main() -> None:
    """Run the example on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        run(parser.parse_args().url or f"sqlite:///{Path(folder) / 'schedule.db'}")


if __name__ == "__main__":
    main()

# Output:
#
# two workers take a measurement each second
# one of them is killed
# ticks without a job: 0
# ticks with two jobs: 0
