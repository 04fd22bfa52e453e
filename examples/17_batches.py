"""A handler that gets lists of jobs, because one call of a search index takes many texts.

    python examples/17_batches.py
    python examples/17_batches.py --url postgresql+psycopg2://user@host/database

The index refuses a text in the wrong encoding, and the handler says so of this posting. Another
text makes the whole call fail: two batches fail of it, then it fails alone, and the others are
done.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import logging
from datetime import timedelta

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, enqueue
from sa_jobqueue.worker import Cancel, Worker


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Posting(JobMixin, RetryMixin, Base):
    """A text to be indexed."""

    __tablename__ = "example_posting"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(50))


postings = JobQueue(Posting, backoff=lambda attempts: timedelta(0))


class SearchIndex:
    """Stands for a service that takes many texts in one call."""

    def insert(self, texts: list[str]) -> set[str]:
        """Index texts; return those that are refused."""
        print(f"insert {len(texts)}")
        if "poison" in texts:
            raise ConnectionError("the index has closed the connection")
        return {text for text in texts if "?" in text}


index = SearchIndex()


@postings.handler(batch=4)
def insert(batch: list[Posting]) -> dict[Posting, Cancel]:
    """Index the texts of a batch by one call."""
    refused = index.insert([posting.text for posting in batch])
    return {posting: Cancel("encoding") for posting in batch if posting.text in refused}


def main(url: str) -> None:
    """Enqueue texts, index them, and print what became of each."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    texts = ["apple", "m?ngo", "pear", "plum", "fig", "poison", "grape"]
    with Session(engine) as session, session.begin():
        enqueue(session, Posting, [{"text": text, "max_attempts": 3} for text in texts])

    Worker(engine, postings, drain=True).run()

    with Session(engine) as session:
        for posting in session.scalars(select(Posting).order_by(Posting.id)):
            print(posting.text, posting.status, posting.attempts, posting.last_error or "-")
    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    logging.getLogger("sa_jobqueue").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="sqlite:///example_batches.db")
    main(parser.parse_args().url)

# Output:
#
# insert 4
# insert 3
# insert 3
# insert 1
# insert 1
# insert 1
# apple done 1 -
# m?ngo cancelled 1 encoding
# pear done 1 -
# plum done 1 -
# fig done 3 ConnectionError: the index has closed the connection
# poison failed 3 ConnectionError: the index has closed the connection
# grape done 3 ConnectionError: the index has closed the connection
