"""Record what a run did to its jobs, and let the checker judge the record.

    python examples/10_history.py
    python examples/10_history.py --url mysql+pymysql://user@host/database

A listener prints failures, and a ledger records everything. Then a script resets a claimed row by
hand. The checker finds this and shows which claims had the row. The comment at the end shows the
output.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin
from sa_jobqueue.events import Event, listens_for
from sa_jobqueue.evidence import Ledger, check_files


class Base(DeclarativeBase):
    """The base of the mapped classes."""


class Parcel(JobMixin, RetryMixin, Base):
    """A parcel to deliver."""

    __tablename__ = "history_parcel"
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[int]


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


def judge(path: Path) -> None:
    """Print what the checker finds in a history."""
    faults = check_files(path)
    print(f"{len(path.read_text().splitlines())} lines; broken rules: {len(faults)}")
    for fault in faults:
        print(f"{fault.rule}: {fault.text}")
        for entry in fault.entries:
            print(f"  {entry.verb} by {entry.owner}, {entry.record.end}")


def run(engine: Engine, path: Path) -> None:
    """Deliver parcels and judge the history; then break a promise by hand and judge again."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Ledger(path).listen(Parcel), Session(engine, expire_on_commit=False) as session:
        session.add_all([Parcel(weight=weight) for weight in (5, 40, 20)])
        session.commit()
        for driver in ("Ada", "Bo"):
            deliver(session, driver)
        judge(path)

        session.add(Parcel(weight=1))
        session.commit()
        parcels.claim(session, owner="Ada")
        session.commit()
        stuck = update(Parcel).where(Parcel.status == "claimed")
        session.execute(stuck.values(status="unclaimed"))
        session.commit()  # this script ignores the fence
        parcels.claim(session, owner="Bo")
        session.commit()
        judge(path)
    Base.metadata.drop_all(engine)


def main() -> None:
    """Run the example on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        url = parser.parse_args().url or f"sqlite:///{Path(folder) / 'parcels.db'}"
        engine = create_engine(url)
        run(engine, Path(folder) / "history.jsonl")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# parcel 2 failed: too heavy for one
# 18 lines; broken rules: 0
# 24 lines; broken rules: 1
# one fence: two claims have it at once
#   claim by Ada, committed
#   claim by Bo, committed
