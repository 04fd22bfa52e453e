"""A rate for each customer, which all workers share.

    python examples/16_rates.py
    python examples/16_rates.py --url postgresql+psycopg2://user@host/database

Two customers may have two e-mails at once, and one more each half second. One of them has a hundred
e-mails waiting, and the other's are found behind them. Two workers share the rates.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, enqueue
from sa_jobqueue.rates import Rate, rate_table
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Email(JobMixin, Base):
    """An e-mail of a customer."""

    __tablename__ = "example_rated_email"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]


rate_table(Base.metadata, name="example_rates")

RATE = Rate(2, per=timedelta(seconds=1), burst=2)

emails = JobQueue(Email, rate=RATE, rate_by=Email.customer)

sent: Counter[int] = Counter()


@emails.handler
def send(email: Email) -> None:
    """Send an e-mail."""
    sent[email.customer] += 1


def main(url: str) -> None:
    """Enqueue e-mails of two customers, and work for some time."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        enqueue(session, Email, [{"customer": 1}] * 100)
        enqueue(session, Email, [{"customer": 2}])

    workers = [Worker(engine, emails) for _ in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    threading.Event().wait(3)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()

    print("customer 1 has a few of a hundred:", 2 < sent[1] < 15)
    print("customer 2 did not wait:", sent[2] == 1)
    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="sqlite:///example_rates.db")
    main(parser.parse_args().url)

# Output:
#
# customer 1 has a few of a hundred: True
# customer 2 did not wait: True
