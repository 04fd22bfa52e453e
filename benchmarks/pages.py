"""Pages: how long each page and command takes over a table of many rows, by how many statements.

Most rows are done. Some thousand are due, later, claimed, failed or cancelled. The times are
medians of calls in this process, after two that warm up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from click.testing import CliRunner
from sqlalchemy import Engine, Index, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.testclient import TestClient

from benchmarks.adapters.model import make_engine
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.report import Figures, Row, table
from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin
from sa_jobqueue.cli import cli
from sa_jobqueue.control import control_tables
from sa_jobqueue.prometheus import QueueCollector
from sa_jobqueue.schedules import Schedules
from sa_jobqueue.web import Access, Visitor, app
from tests.contract.plans import analyze, fill

if __name__ == "__main__":
    run_by_name(__spec__.name)


class Base(DeclarativeBase):
    """The base of the benchmark's tables."""


class Mail(JobMixin, PriorityMixin, RetryMixin, Base):
    """A job with all that lists sort and filter by."""

    __tablename__ = "benchmark_pages_mail"
    __queue_args__ = {"failed_index": True}  # noqa: RUF012 - as users write it
    __table_args__ = (Index("ix_benchmark_pages_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]


control_tables(Base.metadata)
Schedules(Base.metadata)
mails, serial = JobQueue(Mail), JobQueue(Mail, serial_by=Mail.customer)
QUEUES = {"mails": mails, "serial": serial}

PAST, FUTURE = "2026-01-01 00:00:00.000000", "2099-01-01 00:00:00.000000"

#: Statuses and times of the rows that are not done.
OTHERS = [("failed", PAST, 4_000), ("cancelled", PAST, 2_000), ("claimed", PAST, 1_000)]
OTHERS += [("unclaimed", PAST, 5_000), ("unclaimed", FUTURE, 3_000)]

LISTS = ("failed", "claimed", "due", "later", "cancelled")
PATHS = ["/", *(f"/queues/mails?show={each}" for each in LISTS)]
PATHS += ["/queues/mails?show=failed&error=timeout+7", "/queues/mails?show=claimed&owner=w"]
PATHS += ["/queues/serial?show=due", "/previews/mails?all=retry&show=failed"]
PATHS += ["/queues/mails/jobs/5000", "/workers", "/schedules", "/doctor?again=1"]
COMMANDS = [["status", __name__, "--json"], ["failed", f"{__name__}:mails"]]


def tables(figures: Figures) -> str:
    """Write a row for each page."""
    columns = [("", "{what}"), ("ms", "{ms:.1f}"), ("statements", "{statements}")]
    return table(columns, figures["results"])


@benchmark(number("--rows", 1_000_000, least=20_000), number("--rounds", 7), tables=tables)
def main(database: Database, *, rows: int, rounds: int) -> Figures:
    """Ask for each page of a table with many rows."""
    engine = make_engine(database.url)
    Base.metadata.create_all(engine)
    columns = "status, owner, owner_date, run_at, attempts, last_error, priority, customer"
    done = ("done", PAST, rows - sum(each[-1] for each in OTHERS))
    for status, run_at, many in (done, *OTHERS):
        error = "'timeout 7'" if status == "failed" else "NULL"
        values = f"'{status}', 'w', '{PAST}', '{run_at}', 1, {error}, number % 3, number % 500"
        fill(engine, f"INSERT INTO {Mail.__tablename__} ({columns}) SELECT {values}", many)
    analyze(engine, Mail.__tablename__)
    page = TestClient(app(engine, QUEUES, authorize=lambda _: Visitor("ada", Access.ADMIN)))
    behind = re.findall(r'rel="next" href="(.+?)"', page.get(PATHS[1]).text)[0]
    paths = [*PATHS, f"/queues/mails{behind}".replace("&amp;", "&")]
    works: dict[str, Callable[[], object]] = {path: partial(_ask, page, path) for path in paths}
    works["metrics"] = lambda: list(QueueCollector(engine, QUEUES).collect())
    for words in COMMANDS:
        works[" ".join(words)] = partial(_command, [*words, "--url", database.url])
    return {"results": [_row(what, work, rounds) for what, work in works.items()]}


def _ask(page: TestClient, path: str) -> None:
    page.get(path).raise_for_status()


def _command(words: list[str]) -> None:
    assert CliRunner().invoke(cli, words).exit_code == 0


def _row(what: str, work: Callable[[], object], rounds: int) -> Row:
    sent: list[object] = []

    def note(*given: object) -> None:
        sent.append(given)

    work()
    event.listen(Engine, "before_cursor_execute", note)
    work()
    event.remove(Engine, "before_cursor_execute", note)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1_000)
    return {"what": what, "ms": median(times), "statements": len(sent)}
