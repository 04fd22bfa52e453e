"""Four processes mail the subscriptions of an ordinary table; one process is killed midway.

    python examples/05_mailing.py --url postgresql+psycopg2://user@host/database

This example needs PostgreSQL. Each process claims subscriptions by advisory locks, which
write nothing to the table. The UPDATE of the mailing marks a subscription as mailed. At the
end, every subscriber was mailed, and no subscriber was mailed by two processes at once.

100,000 subscriptions take some minutes without output; --subscriptions 2000 takes seconds.
The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlalchemy import ColumnElement, DateTime, Index, create_engine, func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import advisory_session, claim, complete

MAILERS = 4
BATCH = 100


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Subscription(Base):
    """A subscription; the class has no mixin, no status and no owner."""

    __tablename__ = "example_mailing_subscription"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]
    last_mail_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


def last_mailed() -> ColumnElement[datetime]:
    """Return the time of the last mail; subscriptions without a mail come first."""
    return func.coalesce(Subscription.last_mail_at, text("'-infinity'::timestamptz"))


Index("ix_example_mailing", Subscription.kind, last_mailed())


LOCKS = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
    "AND classid = 'example_mailing_subscription'::regclass"
)


@dataclass(frozen=True)
class Mail:
    """A mail: its sender, its subscription, and its times in seconds of the machine's clock."""

    mailer: int
    subscription: int
    begin: float
    end: float


def mail_all(url: str, mailer: int, started: datetime, log: Path) -> None:
    """Mail the subscriptions that were not mailed since the start, until none is left."""
    with log.open("a", buffering=1) as lines, advisory_session(create_engine(url)) as session:
        while batch := claim(
            session,
            Subscription,
            last_mailed() < started,
            Subscription.kind == 1,
            strategy="advisory",
            limit=BATCH,
        ):
            for subscription in batch:
                lines.write(f"{mailer} {subscription.id} {time.monotonic()}\n")  # "sends" it
                subscription.last_mail_at = func.clock_timestamp()
                complete(session, subscription)
                session.commit()  # frees this row; the rest of the batch stays claimed
                lines.write(f"{mailer} {subscription.id} {time.monotonic()}\n")


def main() -> None:
    """Have four processes mail all subscriptions, and kill one process midway."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a PostgreSQL database")
    parser.add_argument("--subscriptions", type=int, default=100_000, metavar="N")
    given = parser.parse_args()
    engine = create_engine(given.url)
    if engine.dialect.name != "postgresql":
        parser.error("PostgreSQL only: other databases have no advisory locks for rows")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        rows = [{"kind": 1 + number % 2} for number in range(2 * given.subscriptions)]
        session.execute(insert(Subscription), rows)
        session.commit()
        started = session.scalars(select(func.now())).one()
        session.commit()

        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "mails"
            killed_at = send_mailing(given.url, started, log, given.subscriptions)
            mails = list(read(log, killed_at))

        not_mailed = select(func.count()).where(Subscription.kind == 1, last_mailed() < started)
        print(f"not mailed: {session.scalars(not_mailed).one()}")
        others = select(func.count()).where(Subscription.kind != 1, last_mailed() >= started)
        print(f"mailed, but of another kind: {session.scalars(others).one()}")
        print(f"locks left: {session.scalars(LOCKS).one()}")
    print_repeats(mails)
    Base.metadata.drop_all(engine)
    engine.dispose()


def send_mailing(url: str, started: datetime, log: Path, subscriptions: int) -> float:
    """Run the mailers and kill the first one midway; return the time of its death."""
    context = multiprocessing.get_context("spawn")
    mailers: list[BaseProcess] = [
        context.Process(target=mail_all, args=(url, number, started, log))
        for number in range(MAILERS)
    ]
    for mailer in mailers:
        mailer.start()
    victim, *others = mailers
    while not log.exists() or len(log.read_text().splitlines()) < 2 * subscriptions // 3:
        time.sleep(0.05)
    victim.kill()
    victim.join()
    killed_at = time.monotonic()
    for mailer in others:
        mailer.join()
    print(
        f"{MAILERS} mailers, one of them killed; the others ended with",
        {mailer.exitcode for mailer in others},
    )
    return killed_at


def read(log: Path, killed_at: float) -> Iterator[Mail]:
    """Read the log, two lines for each mail; a mail without a second line ended at the kill."""
    begun: dict[tuple[int, int], float] = {}
    for line in log.read_text().splitlines():
        mailer, subscription, moment = line.split()
        key = int(mailer), int(subscription)
        if key in begun:
            yield Mail(*key, begun.pop(key), float(moment))
        else:
            begun[key] = float(moment)
    for key, begin in begun.items():
        yield Mail(*key, begin, killed_at)


def print_repeats(mails: list[Mail]) -> None:
    """Print how many subscriptions were mailed twice, and how many by two mailers at once."""
    mailed: dict[int, list[Mail]] = {}
    for mail in mails:
        mailed.setdefault(mail.subscription, []).append(mail)
    twice = [sorted(group, key=lambda mail: mail.begin) for group in mailed.values() if group[1:]]
    at_once = [group for group in twice if any(a.end > b.begin for a, b in pairwise(group))]
    print(f"mailed by two at once: {len(at_once)}")
    print(
        f"mailed again: {'at most the mail' if len(twice) <= 1 else len(twice)} "
        "that was under way at the kill"
    )


if __name__ == "__main__":
    main()

# Run by the tests on postgresql with: --subscriptions 2000
#
# Output:
#
# 4 mailers, one of them killed; the others ended with {0}
# not mailed: 0
# mailed, but of another kind: 0
# locks left: 0
# mailed by two at once: 0
# mailed again: at most the mail that was under way at the kill
