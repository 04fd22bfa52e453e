"""A table keeps its own status words; claims run UPDATE .. ORDER BY .. LIMIT, then SELECT.

    python examples/03_own_status_words.py --url mariadb+pymysql://user@host/database
    python examples/03_own_status_words.py

Only MySQL and MariaDB have this UPDATE. On other databases the example prints a note and
claims with the strategy that "auto" chooses. The comments at the end show the output.
"""

from __future__ import annotations

import argparse

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    JobStatus,
    UnsupportedDatabase,
    claim_statements,
    count_by_status,
)


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Letter(JobMixin, Base):
    """A letter; it is unsent, claimed or sent."""

    __tablename__ = "example_letter"
    __queue_args__ = {"names": {JobStatus.UNCLAIMED: "unsent", JobStatus.DONE: "sent"}}  # noqa: RUF012 - read once, as __table_args__ is

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(100))


def chosen_strategy(engine: Engine) -> str:
    """Return update_then_select if the database can run it, else auto."""
    try:
        claim_statements(Letter, dialect=engine.dialect, strategy="update_then_select")
    except UnsupportedDatabase:
        print("strategy: auto (update_then_select cannot run on this database)")
        return "auto"
    print("strategy: update_then_select")
    return "update_then_select"


def main() -> None:
    """Enqueue five letters by plain SQL, and send them two at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    engine = create_engine(parser.parse_args().url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)

    with engine.begin() as connection:  # plain SQL can insert jobs
        for name in ("anna", "bert", "carla", "dirk", "edda"):
            insert = text("INSERT INTO example_letter (recipient) VALUES (:name)")
            connection.execute(insert, {"name": name})

    letters = JobQueue(Letter, strategy=chosen_strategy(engine))
    with Session(engine, expire_on_commit=False) as session:
        while claimed := letters.claim(session, owner="post office", limit=2):
            session.commit()
            for letter in claimed:
                print(f"{letter.recipient}: {letter.status}", end=", ")
            letters.complete(session, claimed)
            session.commit()
            print("then", claimed[0].status)
        counts = count_by_status(session, Letter)
    print(f"unsent: {counts['unsent']}, sent: {counts['sent']}")

    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# strategy: auto (update_then_select cannot run on this database)
# anna: claimed, bert: claimed, then sent
# carla: claimed, dirk: claimed, then sent
# edda: claimed, then sent
# unsent: 0, sent: 5

# Output on mysql, mariadb:
#
# strategy: update_then_select
# anna: claimed, bert: claimed, then sent
# carla: claimed, dirk: claimed, then sent
# edda: claimed, then sent
# unsent: 0, sent: 5
