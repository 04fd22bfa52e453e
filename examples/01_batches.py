"""Two mailers claim jobs in batches. A predicate chooses the jobs.

    python examples/01_batches.py
    python examples/01_batches.py --url postgresql+psycopg2://user@host/database

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
from itertools import cycle

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


def main() -> None:
    """Enqueue ten emails; two mailers take turns and send the emails to example.org."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    engine = create_engine(parser.parse_args().url)
    sessions = sessionmaker(engine, expire_on_commit=False)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)

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
