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
from typing import Any

import click
from rich.console import Console
from sqlalchemy import Engine, create_engine, func, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ..counts.stats import count_by_status
from ..dialects import database_of
from ..model.mixins import JobMixin
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .database import URLS, Database, driver_options, shown_url
from .printing import in_one_line

ROWS, BATCH, PAUSE, TICK = 10, 100, 0.1, 1.0

#: What the processes are to do: all work; without producers; end when nothing is left.
RUNNING, CLOSING, DRAINING = range(3)


class Base(DeclarativeBase):
    """The base of the example's tables."""


class Record(JobMixin, Base):
    """A job."""

    __tablename__ = "record"
    id: Mapped[int] = mapped_column(primary_key=True)


RECORDS = JobQueue(Record)


class Finished(Base):
    """A row for each finish, in the same transaction; it has no unique key, to note a second."""

    __tablename__ = "record_finished"
    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]


count = click.IntRange(min=1)


@click.command()
# It drops tables, so no environment names its database.
@click.option(
    "--url", default="sqlite:///sa_jobqueue.db", show_default=True, metavar="URL", help=URLS
)
@click.option("--seconds", type=click.FloatRange(min=1), default=30, show_default=True, metavar="N")
@click.option("--producers", type=count, default=2, show_default=True)
@click.option("--consumers", type=count, default=10, show_default=True)
def demo(url: str, seconds: float, producers: int, consumers: int) -> None:
    """Run producers and consumers, and prove the result.

    The producers insert rows for --seconds. The consumers then finish what is left. The proof
    counts in the database that each row was finished once. The command drops the tables of the
    example, and creates them again. Ctrl-C stops the producers.
    """

    def work(engine: Engine) -> None:
        console, stop = Console(highlight=False), THREADS.flag()
        recreate_tables(engine)
        console.print(f"database: {shown_url(engine)}", soft_wrap=True, markup=False)
        with first_signal_stops(stop.set), Run(engine, url, console, producers, consumers) as run:
            run.watch("starting", lambda: not stop.is_set() and not any(run.counts().values()))
            end = time.monotonic() + seconds
            run.watch("running", lambda: not stop.is_set() and time.monotonic() < end)
            run.phase.value = CLOSING
            run.watch("stopping the producers", lambda: run.any_left("producer"))
            run.phase.value = DRAINING
            run.watch("draining", lambda: run.any_left("consumer"))
        prove(engine, console)

    Database(url, create_file=True).run(work, threads=True)


def recreate_tables(engine: Engine) -> None:
    """Drop the example's tables, and create them again; refuse a user's own table."""
    for table in Base.metadata.sorted_tables:
        there = inspect(engine).has_table(table.name)
        columns = inspect(engine).get_columns(table.name) if there else []
        if there and {column["name"] for column in columns} != set(table.columns.keys()):
            raise click.ClickException(
                f"the table {table.name!r} in {shown_url(engine)} is not the example's, and is not "
                "dropped; use another database"
            )
    with engine.connect() as connection:
        if database_of(connection).one_writer:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)


class Run:
    """The processes of a run, and what they have done; leaving the block ends them."""

    def __init__(
        self, engine: Engine, url: str, console: Console, producers: int, consumers: int
    ) -> None:
        self.engine, self.console = engine, console
        self.begin = time.monotonic()
        context = multiprocessing.get_context("spawn")
        self.phase = context.RawValue("i", RUNNING)
        self.children = [
            (context.Process(target=run_child, args=(role, url, self.phase), daemon=True), role)
            for role in ["consumer"] * consumers + ["producer"] * producers
        ]

    def __enter__(self) -> Run:
        # Only the parent handles Ctrl-C: children inherit that the signal is ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child, _ in self.children:
            child.start()
        signal.signal(signal.SIGINT, before)
        return self

    def __exit__(self, *error: object) -> None:
        for child, _ in self.children:
            child.kill()
            child.join()

    def any_left(self, role: str) -> bool:
        """Tell whether a process of a role still runs."""
        return any(child.exitcode is None for child, of in self.children if of == role)

    def counts(self) -> dict[str, int]:
        """Count the jobs of each status."""
        with Session(self.engine) as session:
            return count_by_status(session, Record)

    def watch(self, doing: str, go_on: Callable[[], bool]) -> None:
        """Print the counts until it is time for the next phase; a process that failed ends it."""
        while go_on():
            for child, role in self.children:
                if child.exitcode:  # None: it runs; 0: it has ended
                    raise click.ClickException(f"a {role} ended with exit code {child.exitcode}")
            counted = ", ".join(f"{word} {number:,}" for word, number in self.counts().items())
            age = time.monotonic() - self.begin
            self.console.print(f"{age:.0f} s {doing}: {counted}", soft_wrap=True)
            time.sleep(TICK)


def run_child(role: str, url: str, phase: Any) -> None:
    """Do a role's work, transaction by transaction, until the phase or the parent ends."""
    parent = multiprocessing.parent_process()
    engine = create_engine(url, **driver_options(make_url(url)))
    work, last = (consume, DRAINING) if role == "consumer" else (produce, RUNNING)
    try:
        while parent is not None and parent.is_alive() and phase.value <= last:
            if not work(engine, phase.value == DRAINING):
                return
            time.sleep(PAUSE if phase.value != DRAINING else 0)
    except SQLAlchemyError as error:
        sys.exit(in_one_line(error))


def produce(engine: Engine, _: bool) -> bool:
    """Insert rows."""
    run_with_retries(engine, lambda session: session.add_all(Record() for _ in range(ROWS)))
    return True


def consume(engine: Engine, draining: bool) -> bool:
    """Claim rows; finish and log them."""
    owner = multiprocessing.current_process().name
    claimed = run_with_retries(
        engine, lambda session: RECORDS.claim(session, owner=owner, limit=BATCH)
    )

    def finish(session: Session) -> None:
        session.add_all(Finished(record_id=record.id) for record in claimed)
        RECORDS.complete(session, claimed)

    if claimed:
        run_with_retries(engine, finish)
    return bool(claimed) or not draining


def prove(engine: Engine, console: Console) -> None:
    """Print what the logs and the table show; fail unless each row was finished once."""
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
    told = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    inserted, finished, *wrong = counts.values()
    if not inserted or inserted != finished or any(wrong):
        raise click.ClickException(f"PROOF FAILED: {told}")
    console.print(f"from the log in the database: {told}", soft_wrap=True)
    console.print(f"PROOF: inserted = finished = {inserted:,}, none twice, none left")
