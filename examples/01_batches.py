"""Two mailers claim jobs in batches. A predicate chooses the jobs.

    python examples/01_batches.py
    python examples/01_batches.py --url postgresql+psycopg2://user@host/database

The comment at the end shows the output. Two commands do the same with processes: producers insert
rows with random letters, and each consumer claims batches of the rows that begin with one letter.

    python examples/01_batches.py setup-tables --url sqlite:///batches.db
    python examples/01_batches.py start-processing --url sqlite:///batches.db    # until Ctrl-C
"""

from __future__ import annotations

import argparse
import random
import signal
import string
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from multiprocessing import Event, Process
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, JobQueue, count_by_status


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Email(JobMixin, Base):
    """An email to be sent; the mixin adds status, owner and owner_date."""

    __tablename__ = "example_batches_email"

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(100))


#: The queue builds its statements once; use one object for all claims.
OUTBOX = JobQueue(Email, Email.recipient.like("%@example.org"))


def send(mailer: str, emails: list[Email]) -> None:
    """Pretend to send a batch."""
    names = ", ".join(email.recipient.partition("@")[0] for email in emails)
    print(f"{mailer} sends {len(emails)}: {names}")


def send_next_batch(sessions: sessionmaker[Session], mailer: str) -> bool:
    """Claim, commit, work, finish, commit; tell whether a job was claimed."""
    with sessions() as session:
        emails = OUTBOX.claim(session, owner=mailer, limit=3)
        session.commit()  # others see the claim now, and the row locks are released
        if not emails:
            return False
        send(mailer, list(emails))
        OUTBOX.complete(session, emails)
        session.commit()
        return True


def send_all(sessions: sessionmaker[Session]) -> None:
    """Enqueue ten emails; two mailers take turns and send the emails to example.org."""
    with sessions() as session:
        for name in ("anna", "bert", "carla", "dirk", "edda", "fritz", "gerda"):
            session.add(Email(recipient=f"{name}@example.org"))
        for name in ("hans", "ida", "jan"):
            session.add(Email(recipient=f"{name}@example.com"))
        session.commit()

    mailers = cycle(["mailer-1", "mailer-2"])
    while send_next_batch(sessions, next(mailers)):
        pass

    with sessions() as session:
        counts = count_by_status(session, Email)
    print(f"done: {counts['done']}, unclaimed: {counts['unclaimed']}")


# -- the same with processes -------------------------------------------------------


def produce(sessions: sessionmaker[Session], number: int) -> None:
    """Insert ten rows with random letters."""
    with sessions.begin() as session:
        for _ in range(10):
            session.add(Email(recipient="".join(random.choices(string.ascii_lowercase, k=20))))
    print("producer", number, "#records = 10")


def consume(sessions: sessionmaker[Session], number: int) -> None:
    """Claim up to 100 rows that begin with a random letter, and delete them."""
    queue = JobQueue(Email, Email.recipient.like(f"{random.choice(string.ascii_lowercase)}%"))
    with sessions() as session:
        emails = queue.claim(session, owner=f"consumer-{number}", limit=100)
        session.commit()
        if emails:
            print("consumer", number, f"#records = {len(emails)} -", [one.id for one in emails])
            queue.complete(session, emails, delete=True)
            session.commit()


def repeat(work: Callable[[sessionmaker[Session], int], None], url: str, n: int, stop: Any) -> None:
    """Do one transaction after the other in a process of its own."""
    sessions = sessionmaker(create_engine(url), expire_on_commit=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops it after its transaction
    while not stop.wait(0.1):
        work(sessions, n)


def start_processing(url: str, seconds: float) -> None:
    """Run two producers and ten consumers, until the time is over or Ctrl-C."""
    stop = Event()
    roles = [(produce, number) for number in (1, 2)] + [(consume, number) for number in range(10)]
    processes = [Process(target=repeat, args=(work, url, n, stop)) for work, n in roles]
    for process in processes:
        process.start()
    with suppress(KeyboardInterrupt):
        time.sleep(seconds)
    stop.set()
    for process in processes:
        process.join()


def main() -> None:
    """Run the example, or one of its commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = ["setup-tables", "start-processing"]
    parser.add_argument("command", nargs="?", choices=commands)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    parser.add_argument("--seconds", type=float, default=1e6, help="of start-processing")
    given = parser.parse_args()
    engine = create_engine(given.url)
    if given.command == "start-processing":
        start_processing(given.url, given.seconds)
        return
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    if given.command is None:
        send_all(sessionmaker(engine, expire_on_commit=False))
        Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# mailer-1 sends 3: anna, bert, carla
# mailer-2 sends 3: dirk, edda, fritz
# mailer-1 sends 1: gerda
# done: 7, unclaimed: 3
