"""All subscribers get two mailings, although two of the processes are killed.

    python examples/07_two_mailings.py
    python examples/07_two_mailings.py --url postgresql+psycopg2://user@host/database

Each mailing is a round over the same rows. In the first round a mailer is killed midway. In
the second round, the process that starts the round is killed midway, while the other mailers
already work. The next call finishes the start. At the end, every subscriber was mailed once in
each round: the finish of each job inserts a row for its mail, and the example counts these rows.

100,000 subscribers take some minutes; --subscribers 1000 takes seconds.
The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine, create_engine, func, insert, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import (
    JobMixin,
    Owner,
    RoundMixin,
    claim,
    complete,
    enqueue,
    is_transient,
    reap,
    round_progress,
    start_round,
)
from sa_jobqueue.events import Event, listens_for
from sa_jobqueue.rounds import RoundProgress

MAILERS = 3
BATCH = 50

R = TypeVar("R")


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Subscriber(JobMixin, RoundMixin, Base):
    """A subscriber, who gets each mailing."""

    __tablename__ = "example_subscriber"

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str] = mapped_column(String(100))


class Mail(Base):
    """A mail that was sent; without a unique key, a repeated mail would show."""

    __tablename__ = "example_subscriber_mail"

    id: Mapped[int] = mapped_column(primary_key=True)
    subscriber: Mapped[int]
    mailing: Mapped[int]


def connect(url: str) -> Engine:
    """Make an engine; on SQLite each process waits while another process writes."""
    options = {"timeout": 60} if make_url(url).get_backend_name() == "sqlite" else {}
    return create_engine(url, connect_args=options)


def run_transaction(engine: Engine, work: Callable[[Session], R]) -> R:
    """Run a transaction; repeat it after a deadlock."""
    while True:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        except DBAPIError as error:
            if not is_transient(error):
                raise


# -- the mailers -----------------------------------------------------------------


def mail(url: str, stop: Connection) -> None:
    """Mail the subscribers of each round, the oldest round first, until the pipe is closed.

    The pipe is safer than an Event of multiprocessing: the Event's set() hangs if a mailer was
    killed while it waited.
    """
    engine = connect(url)
    with Owner(engine) as owner:
        while mail_some(engine, owner) or not stop.poll(0.05):
            pass


def mail_some(engine: Engine, owner: Owner) -> bool:
    """Mail a batch; if there is none, reap the claims of dead mailers."""
    claimed = run_transaction(
        engine, lambda session: claim(session, Subscriber, owner=owner, limit=BATCH)
    )
    mails = [{"subscriber": job.id, "mailing": job.round} for job in claimed]

    def finish(session: Session) -> None:
        complete(session, claimed)
        session.execute(insert(Mail), mails)

    if claimed:
        run_transaction(engine, finish)
        return True
    return bool(run_transaction(engine, lambda session: reap(session, Subscriber)))


# -- the mailings ----------------------------------------------------------------


def start_and_report(url: str, chunk: int, reports: Connection) -> None:
    """Start a mailing; after each chunk, report its rows and wait for an answer."""

    @listens_for(Subscriber, "after_change")
    def report(chunk: Event) -> None:
        reports.send(chunk.count)
        reports.recv()

    start_round(connect(url), Subscriber, chunk=chunk)


def start_killed(url: str, chunk: int) -> int:
    """Let a process start a mailing and kill it after two chunks; return the rows so far."""
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    starter = context.Process(target=start_and_report, args=(url, chunk, child))
    starter.start()
    rows: int = parent.recv()
    parent.send("go on")
    rows += parent.recv()
    starter.kill()
    starter.join()
    return rows


def wait_for(engine: Engine, enough: Callable[[RoundProgress], bool]) -> RoundProgress:
    """Wait until the newest mailing has made enough progress."""
    while True:
        progress = run_transaction(engine, lambda session: round_progress(session, Subscriber))
        if enough(progress):
            return progress
        time.sleep(0.05)


def run(url: str, engine: Engine, subscribers: int, mailers: list[BaseProcess]) -> None:
    """Make the two mailings and print their results."""
    number = start_round(engine, Subscriber)
    for mailer in mailers:
        mailer.start()
    wait_for(engine, lambda at: at.done >= subscribers // 3)
    mailers[0].kill()
    mailers[0].join()
    at = wait_for(engine, lambda at: at.done == at.total)
    print(f"mailing {number}: one of {MAILERS} mailers was killed; {at.done} mailed of {at.total}")

    rows = start_killed(url, chunk=max(1, subscribers // 5))
    print(f"mailing 2: its start was killed, with {rows} of {subscribers} in it")
    number = start_round(engine, Subscriber)
    at = wait_for(engine, lambda at: at.done == at.total)
    print(f"mailing {number}: the next call has finished the start; {at.done} mailed of {at.total}")


def prove(session: Session) -> None:
    """Count how often each subscriber was mailed."""
    mailed = select(Mail.subscriber, Mail.mailing, func.count().label("mails"))
    each = mailed.group_by(Mail.subscriber, Mail.mailing).subquery()
    twice = session.scalar(select(func.count()).where(each.c.mails > 1))
    both = select(each.c.subscriber).group_by(each.c.subscriber).having(func.count() == 2)
    print(f"mailed in both: {session.scalar(select(func.count()).select_from(both.subquery()))}")
    print(f"mailed twice in one: {twice}")


def main() -> None:
    """Mail all subscribers twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    parser.add_argument("--subscribers", type=int, default=100_000, metavar="N")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url: str = given.url or f"sqlite:///{Path(folder) / 'mailings.db'}"
        engine = connect(url)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            rows = ({"address": f"{n}@example.org"} for n in range(given.subscribers))
            enqueue(session, Subscriber, rows)

        context = multiprocessing.get_context("spawn")
        stop, stopping = context.Pipe(duplex=False)
        mailers: list[BaseProcess] = [
            context.Process(target=mail, args=(url, stop), daemon=True) for _ in range(MAILERS)
        ]
        run(url, engine, given.subscribers, mailers)
        stopping.close()
        for mailer in mailers[1:]:
            mailer.join()
        print("the other mailers ended with", {mailer.exitcode for mailer in mailers[1:]})
        with Session(engine) as session:
            prove(session)
        Base.metadata.drop_all(engine)
        engine.dispose()


if __name__ == "__main__":
    main()

# Run by the tests with: --subscribers 1000
#
# Output:
#
# mailing 1: one of 3 mailers was killed; 1000 mailed of 1000
# mailing 2: its start was killed, with 400 of 1000 in it
# mailing 2: the next call has finished the start; 1000 mailed of 1000
# the other mailers ended with {0}
# mailed in both: 1000
# mailed twice in one: 0
