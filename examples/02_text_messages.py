"""A worker sends text messages until the queue is empty, and tries a failed message again.

    python examples/02_text_messages.py
    python examples/02_text_messages.py --url mysql+pymysql://user@host/database

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import logging
from datetime import timedelta

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, ScheduleMixin
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    """The base of this example's tables."""


class TextMessage(JobMixin, ScheduleMixin, RetryMixin, Base):
    """A text message to be sent; after a failure it waits until its run_at."""

    __tablename__ = "example_text_message"

    id: Mapped[int] = mapped_column(primary_key=True)
    phone: Mapped[str] = mapped_column(String(20))


def send(message: TextMessage) -> None:
    """Pretend to send a message; the first attempt to reach 555-0102 fails."""
    if message.phone == "555-0102" and message.attempts == 1:
        raise ConnectionError("the network is busy")


def print_outcome(message: TextMessage, outcome: object) -> None:
    """Print whether a message was sent; the worker calls this after it commits the finish."""
    print(f"{message.phone}: {'sent' if outcome is None else 'failed (will be tried again)'}")


def main() -> None:
    """Enqueue three messages, and send until no message is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    engine = create_engine(parser.parse_args().url)
    logging.basicConfig(level=logging.ERROR)  # print_outcome() reports failures
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)

    with Session(engine) as session:
        for phone in ("555-0101", "555-0102", "555-0103"):
            session.add(TextMessage(phone=phone))
        session.commit()

    worker = Worker(
        engine,
        JobQueue(TextMessage),
        send,
        limit=1,
        delete=True,  # a sent message leaves the table
        drain=True,  # stop when the queue is empty
        backoff=lambda attempts: timedelta(seconds=0.2) * attempts,
        on_outcome=print_outcome,
    )
    with worker.stopping_on_signals():
        worker.run()
    print("all done")

    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# 555-0101: sent
# 555-0102: failed (will be tried again)
# 555-0103: sent
# 555-0102: sent
# all done
