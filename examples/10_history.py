"""Record what a run did to its jobs in a table, and ask who had a job.

    python examples/10_history.py
    python examples/10_history.py --url mysql+pymysql://user@host/database

A listener prints failures. The history table gets a row for each event of each parcel, in the
transaction of the verb: what was rolled back is not in it. The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin
from sa_jobqueue.events import Event, HistoryTable, history_table, job_records, listens_for


class Base(DeclarativeBase):
    """The base of the mapped classes."""


class Parcel(JobMixin, RetryMixin, Base):
    """A parcel to deliver."""

    __tablename__ = "history_parcel"
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[int]


HISTORY = history_table(Base.metadata, "history_events")  # create_all() creates it
parcels = JobQueue(Parcel)
AT_ONCE = timedelta(0)


@listens_for(parcels, "after_fail")
def note_failures(event: Event) -> None:
    """Print a failure after it is committed."""
    print(f"parcel {event.jobs[0].key[0]} failed: {event.error}")


def deliver(session: Session, driver: str) -> None:
    """Deliver two parcels; a heavy parcel fails at its first attempt."""
    claimed = parcels.claim(session, owner=driver, limit=2)
    session.commit()
    for parcel in claimed:
        if parcel.weight > 30 and parcel.attempts == 1:
            parcels.fail(session, parcel, error="too heavy for one", retry_in=AT_ONCE)
        else:
            parcels.complete(session, parcel)
    session.commit()


def run(engine: Engine) -> None:
    """Deliver parcels, and print what the history has on the heavy one."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    recorder = HistoryTable(HISTORY).listen(Parcel)
    with Session(engine, expire_on_commit=False) as session:
        session.add_all([Parcel(weight=weight) for weight in (5, 40, 20)])
        session.commit()
        parcels.claim(session, owner="Cy", limit=3)
        session.rollback()
        for driver in ("Ada", "Bo"):
            deliver(session, driver)

        heavy = job_records(session.connection(), HISTORY, Parcel, (2,), limit=10)
        for record in reversed(heavy):
            print(f"{record.event} by {record.owner}: {record.status}")
    recorder.remove(Parcel)
    Base.metadata.drop_all(engine)


def main() -> None:
    """Run the example on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        url = parser.parse_args().url or f"sqlite:///{Path(folder) / 'parcels.db'}"
        engine = create_engine(url)
        run(engine)
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# parcel 2 failed: too heavy for one
# after_enqueue by None: unclaimed
# after_claim by Ada: claimed
# after_fail by Ada: unclaimed
# after_claim by Bo: claimed
# after_finish by Bo: done
