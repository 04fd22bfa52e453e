"""``demo``: processes insert rows, others finish them, and the database proves it.

The consumers are workers, as those of ``work``. A pipe joins the processes to us; when it is
closed, at the end or because we were killed, producers end, and consumers finish what is left.

The proof reads the jobs, which stay in their table, and the log that the handler wrote in the
transactions that finished them.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import click
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ..counts.stats import count_by_status
from ..model.mixins import JobMixin
from ..process import THREADS, first_signal_stops, signals_handled
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from ..worker import Worker
from .database import URLS, Databases, engine_of, one_of, shown_url
from .options import number, plain_command, seconds, text
from .printing import say

#: Each producer inserts so many rows in a tick of so many seconds; a transaction finishes a batch.
ROWS, TICK, BATCH = 100, 1.0, 100


class Base(DeclarativeBase):
    """The base of the example's tables."""


class Record(JobMixin, Base):
    """A job."""

    __tablename__ = "sa_jobqueue_demo"
    id: Mapped[int] = mapped_column(primary_key=True)


class Finished(Base):
    """A row for each finish, in the same transaction; it has no unique key, to note a second."""

    __tablename__ = "sa_jobqueue_demo_finished"
    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]


RECORDS = JobQueue(Record)


@RECORDS.handler(transactional=True, batch=BATCH)
def finish(session: Session, records: list[Record]) -> None:
    """Log the jobs."""
    session.add_all(Finished(record_id=record.id) for record in records)


@plain_command()
def demo(
    url: str = text(URLS, "URL", default="sqlite:///sa_jobqueue.db"),  # no environment names it
    seconds: timedelta = seconds("How long rows are inserted.", timedelta(seconds=30)),
    producers: int = number("Start N processes that insert rows.", default=2),
    consumers: int = number("Start N processes that claim and finish them.", default=4),
) -> None:
    """Run producers and consumers, and prove the result.

    Rows are inserted for --seconds, or until Ctrl-C. The consumers then finish what is left. The
    proof counts in the database that each row was finished once. The command drops the tables of
    the example, and creates them again.
    """

    def work(_: object, engines: dict[str, Engine]) -> None:
        engine = one_of(engines)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        say(f"database: {shown_url(engine)}")
        stop, begin = THREADS.flag(), time.monotonic()
        with first_signal_stops(stop.set):
            inserting, ends_inserting = start(produce, producers, url)
            working, ends_working = start(consume, consumers, url)
            while is_alive(working):
                age = time.monotonic() - begin
                if age > seconds.total_seconds() or stop.is_set():
                    ends_inserting.close()
                if not is_alive(inserting):
                    ends_working.close()
                with Session(engine) as session:
                    counts = in_words(count_by_status(session, Record))
                say(f"{age:.0f} s {'draining' if ends_working.closed else 'running'}: {counts}")
                time.sleep(TICK)
        prove(engine)

    Databases((url,)).open(work, threads=True)


def start(
    run: Callable[[str, Connection], None], number: int, url: str
) -> tuple[list[SpawnProcess], Connection]:
    """Start processes, which end with ours at the latest; return them, and the pipe to close."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    children = [
        context.Process(target=run, args=(url, theirs), name=run.__name__, daemon=True)
        for _ in range(number)
    ]
    # Only the parent handles Ctrl-C: children inherit that the signal is ignored.
    with signals_handled(signal.SIG_IGN, signal.SIGINT), theirs:
        for child in children:
            child.start()
    return children, ours


def is_alive(children: list[SpawnProcess]) -> bool:
    """Tell whether some still run.

    Raises:
        ClickException: one has failed.
    """
    if failed := next((child for child in children if child.exitcode), None):
        raise click.ClickException(f"{failed.name} has ended with exit code {failed.exitcode}")
    return any(child.exitcode is None for child in children)


def produce(url: str, pipe: Connection) -> None:
    """Insert rows until the pipe is closed."""
    engine = engine_of(url)
    run_with_retries(engine, insert)
    while not pipe.poll(TICK):
        run_with_retries(engine, insert)


def consume(url: str, pipe: Connection) -> None:
    """Work until the pipe is closed; then finish what is left."""
    engine = engine_of(url)
    worker = Worker(engine, RECORDS)

    def stop_when_closed() -> None:
        pipe.poll(None)
        worker.stop()

    THREADS.start(stop_when_closed, name="sa_jobqueue listen")
    worker.run()
    Worker(engine, RECORDS, drain=True).run()


def insert(session: Session) -> None:
    """Insert rows."""
    session.add_all(Record() for _ in range(ROWS))


def prove(engine: Engine) -> None:
    """Print what the table and the log show; fail unless each row was finished once."""
    finished = select(func.count()).where(Record.id.in_(select(Finished.record_id)))
    with Session(engine) as session:
        by_status = count_by_status(session, Record)
        counts = {
            "inserted": sum(by_status.values()),
            "done": by_status["done"],
            "rows in the log": session.scalars(select(func.count(Finished.id))).one(),
            "different": session.scalars(finished).one(),
        }
    if len(set(counts.values())) > 1 or not counts["inserted"]:
        raise click.ClickException(f"PROOF FAILED: {in_words(counts)}")
    say(f"PROOF: each row was finished once: {in_words(counts)}")


def in_words(counts: dict[str, int]) -> str:
    """Name what was counted, and how many."""
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())
