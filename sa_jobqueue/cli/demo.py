"""``demo``: producers and consumers, each a process, drain a table, and the database proves it.

The processes read from shared memory what they are to do. That needs no lock, so a process that is
killed blocks no other.

The proof reads the jobs, which stay in their table, and the log that consumers wrote in the
transactions that finished them.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine, create_engine, func, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ..counts.stats import count_by_status
from ..databases import database_of
from ..model.mixins import JobMixin
from ..process import THREADS, first_signal_stops, signals_handled
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .database import URLS, Databases, driver_options, shown_url
from .options import number, plain_command, seconds, text
from .printing import in_one_line, say

ROWS, BATCH, PAUSE, TICK = 10, 100, 0.1, 1.0

#: What the processes are to do: all work; without producers; end when nothing is left.
RUNNING, CLOSING, DRAINING = range(3)


class Base(DeclarativeBase):
    """The base of the example's tables."""


class Record(JobMixin, Base):
    """A job."""

    __tablename__ = "sa_jobqueue_demo"
    id: Mapped[int] = mapped_column(primary_key=True)


RECORDS = JobQueue(Record)


class Finished(Base):
    """A row for each finish, in the same transaction; it has no unique key, to note a second."""

    __tablename__ = "sa_jobqueue_demo_finished"
    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]


@plain_command()
def demo(
    url: str = text(URLS, "URL", default="sqlite:///sa_jobqueue.db"),  # no environment names it
    seconds: timedelta = seconds("How long the producers insert rows.", timedelta(seconds=30)),
    producers: int = number("Start N processes that insert rows.", default=2),
    consumers: int = number("Start N processes that claim and finish them.", default=10),
) -> None:
    """Run producers and consumers, and prove the result.

    The producers insert rows for --seconds. The consumers then finish what is left. The proof
    counts in the database that each row was finished once. The command drops the tables of the
    example, and creates them again. Ctrl-C stops the producers.
    """

    def work(engine: Engine) -> None:
        recreate_tables(engine)
        say(f"database: {shown_url(engine)}")
        stop = THREADS.flag()
        with first_signal_stops(stop.set):
            run = Run(engine, url, producers, consumers)
            run.watch("starting", lambda: not stop.is_set() and not any(run.counts().values()))
            end = time.monotonic() + seconds.total_seconds()
            run.watch("running", lambda: not stop.is_set() and time.monotonic() < end)
            run.phase.value = CLOSING
            run.watch("stopping the producers", lambda: run.any_left("producer"))
            run.phase.value = DRAINING
            run.watch("draining", lambda: run.any_left("consumer"))
        prove(engine)

    Databases((url,)).run(work, create_file=True)


def recreate_tables(engine: Engine) -> None:
    """Drop the example's tables, and create them again."""
    with engine.connect() as connection:
        if database_of(connection).one_writer:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)


class Run:
    """The processes of a run, which end with ours at the latest, and what they have done."""

    def __init__(self, engine: Engine, url: str, producers: int, consumers: int) -> None:
        self.engine, self.begin = engine, time.monotonic()
        context = multiprocessing.get_context("spawn")
        self.phase = context.RawValue("i", RUNNING)
        self.children = [
            (role, context.Process(target=run_child, args=(role, url, self.phase), daemon=True))
            for role in ["consumer"] * consumers + ["producer"] * producers
        ]
        # Only the parent handles Ctrl-C: children inherit that the signal is ignored.
        with signals_handled(signal.SIG_IGN, signal.SIGINT):
            for _, child in self.children:
                child.start()

    def any_left(self, role: str) -> bool:
        """Tell whether a process of a role still runs."""
        return any(child.exitcode is None for of, child in self.children if of == role)

    def counts(self) -> dict[str, int]:
        """Count the jobs of each status."""
        with Session(self.engine) as session:
            return count_by_status(session, Record)

    def watch(self, doing: str, go_on: Callable[[], bool]) -> None:
        """Print the counts until it is time for the next phase; a process that failed ends it."""
        while go_on():
            for role, child in self.children:
                if child.exitcode:  # None: it runs; 0: it has ended
                    raise click.ClickException(f"a {role} ended with exit code {child.exitcode}")
            age = time.monotonic() - self.begin
            say(f"{age:.0f} s {doing}: {in_words(self.counts())}")
            time.sleep(TICK)


def run_child(role: str, url: str, phase: Any) -> None:
    """Do a role's work, transaction by transaction, until the phase or the parent ends."""
    parent = multiprocessing.parent_process()
    engine = create_engine(url, **driver_options(make_url(url)))
    work, last = (consume, DRAINING) if role == "consumer" else (produce, RUNNING)
    try:
        while parent is not None and parent.is_alive() and (now := phase.value) <= last:
            if not work(engine) and now == DRAINING:
                return
            time.sleep(PAUSE)
    except SQLAlchemyError as error:
        sys.exit(in_one_line(error))


def produce(engine: Engine) -> bool:
    """Insert rows."""
    run_with_retries(engine, lambda session: session.add_all(Record() for _ in range(ROWS)))
    return True


def consume(engine: Engine) -> bool:
    """Claim rows; finish and log them; tell whether there were any."""
    owner = multiprocessing.current_process().name
    claimed = run_with_retries(
        engine, lambda session: RECORDS.claim(session, owner=owner, limit=BATCH)
    )

    def finish(session: Session) -> None:
        session.add_all(Finished(record_id=record.id) for record in claimed)
        RECORDS.complete(session, claimed)

    if claimed:
        run_with_retries(engine, finish)
    return bool(claimed)


def prove(engine: Engine) -> None:
    """Print what the log and the table show; fail unless each row was finished once."""
    inserts, finishes = select(Record.id), select(Finished.record_id)
    again = finishes.group_by(Finished.record_id).having(func.count() > 1)
    found = {
        "inserted": inserts,
        "finished": finishes,
        "finished twice": again,
        "never finished": inserts.where(Record.id.not_in(finishes)),
        "finished, never inserted": finishes.where(Finished.record_id.not_in(inserts)),
        "left in the table": select(Record.id).where(Record.status != "done"),
    }
    with Session(engine) as session:
        counts = {
            name: session.scalar(select(func.count()).select_from(rows.subquery())) or 0
            for name, rows in found.items()
        }
    inserted, finished, *wrong = counts.values()
    if not inserted or inserted != finished or any(wrong):
        raise click.ClickException(f"PROOF FAILED: {in_words(counts)}")
    say(f"from the log in the database: {in_words(counts)}")
    say(f"PROOF: inserted = finished = {inserted:,}, none twice, none left")


def in_words(counts: dict[str, int]) -> str:
    """Name what was counted, and how many."""
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())
