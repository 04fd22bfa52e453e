"""One queue that many connections drain at once: what they wait for, and what their claims miss.

The connections are threads of a few processes: each process of a crowd would need memory for an
interpreter of its own. A thread has a connection of its own.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from statistics import fmean
from threading import Event, Thread
from typing import Any

import click
from sqlalchemy import Connection, NullPool, create_engine, func, insert, select
from sqlalchemy.orm import DeclarativeBase

from benchmarks.adapters.model import Numbered, connected, make_engine, payloads
from benchmarks.growth.crowd import Member
from benchmarks.harness.command import benchmark, number, numbers, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.processes import Answer, ask_all, check_each_ran_once, hosts
from benchmarks.harness.report import Column, Figures, Row, table
from benchmarks.harness.timing import latency
from sa_jobqueue import JobMixin, Owner
from sa_jobqueue.worker import Worker

if __name__ == "__main__":
    run_by_name(__spec__.name)

#: The connections are divided among so many processes.
PROCESSES = 8

PARTITIONS = 8

#: A claimer leaves after so many empty claims, with a pause after each.
EMPTY = 3
PAUSE = 0.005

#: The pause between two looks at the server.
LOOK_EVERY = 0.02

#: Queries that name what connections wait for at this moment, a row for each of them.
WAITING = {
    "postgresql": "SELECT wait_event_type FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type IN ('Lock', 'LWLock')",
    **dict.fromkeys(
        ("mysql", "mariadb"),
        "SELECT 'row lock' FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'",
    ),
}

#: Queries of counters, which count since the server was started.
COUNTERS = {
    "postgresql": "SELECT 'deadlocks', deadlocks FROM pg_stat_database "
    "WHERE datname = current_database()",
    **dict.fromkeys(
        ("mysql", "mariadb"),
        "SHOW GLOBAL STATUS WHERE variable_name IN ('Innodb_row_lock_waits', 'Innodb_deadlocks')",
    ),
}


class Base(DeclarativeBase):
    """The tables of this benchmark."""


class Whole(Numbered, JobMixin, Base):
    """A job of a queue that is one table."""

    __tablename__ = "bench_hot"


class Parted(Numbered, JobMixin, Base):
    """A job of a queue in partitions."""

    __tablename__ = "bench_hot_parted"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "HASH (id)",
        "mysql_partition_by": "HASH (id)",
        "mysql_partitions": str(PARTITIONS),
        "mariadb_partition_by": "HASH (id)",
        "mariadb_partitions": str(PARTITIONS),
    }


# -- in a process -------------------------------------------------------


class Claimer(Member):
    """A thread: claim_rows() and complete(), each in a transaction of its own.

    Attributes:
        claims: when each claim began and ended, and how many jobs it got.
    """

    delete = True
    session = pooled = False

    def __init__(self, url: str, batch: int, entity: type[Any], job_owner: Owner) -> None:
        super().__init__(url, batch)
        self.entity = entity
        self.job_owner = job_owner
        self.claims: list[tuple[float, float, int]] = []
        self.run: list[int] = []

    def work(self) -> dict[str, Any]:
        """Work until no job is left; return what was counted."""
        jobs: Any = ()
        empty = 0
        while empty < EMPTY:
            jobs = self.turn(jobs)
            empty = 0 if jobs else empty + 1
            if empty:
                time.sleep(PAUSE)
        return self.counts(run=self.run, claims=self.claims)

    def turn(self, jobs: Any) -> Any:
        """Claim a batch and finish it."""
        jobs = self.timed(self.claim)
        if jobs:
            self.in_transaction(self.finish, jobs)
            self.last = time.monotonic()
        return jobs

    def timed(self, claim: Callable[..., Any], *given: Any) -> Any:
        """Claim in a transaction, and note when, and how many jobs came."""
        begun = time.monotonic()
        jobs = self.in_transaction(claim, *given)
        self.claims.append((begun, time.monotonic(), len(jobs)))
        self.run += self.numbers(jobs)
        return jobs


class Turner(Claimer):
    """The same by turn(): a batch is finished in the transaction that claims the next."""

    def turn(self, jobs: Any) -> Any:
        jobs = self.timed(self.finish_and_claim, jobs)
        if jobs:
            self.last = time.monotonic()
        return jobs

    def finish_and_claim(self, jobs: Any) -> Any:
        """Run turn()."""
        return self.queue.turn(
            self.connection, jobs, owner=self.owner, limit=self.batch, delete=True, rows=True
        )


class Working(Claimer):
    """A Worker, which times no claims for us; the Workers of a process share an Owner."""

    def open(self) -> None:
        super().open()
        self.connection.close()  # back to the pool, for the Worker

    def work(self) -> dict[str, Any]:
        def done(job: Any, _: object) -> None:
            self.last = time.monotonic()
            self.run.append(job.id)

        worker = Worker(
            self.engine,
            self.queue,
            lambda _: None,
            owner=self.job_owner,
            limit=self.batch,
            delete=True,
            drain=True,
            on_outcome=done,
        )
        worker.run()
        return self.counts(run=self.run, claims=[])


#: The ways to claim and the tables, by the words that the figures use. A command names them by
#: their numbers here.
WAYS: dict[str, type[Claimer]] = {"rows": Claimer, "turn": Turner, "Worker": Working}
TABLES: dict[str, type[Any]] = {"one table": Whole, "partitions": Parted}


class Threads:
    """A process of several claimers."""

    retries = 0
    ended_at: float | None = None

    def __init__(self, url: str, batch: int) -> None:
        self.url = url
        self.batch = batch

    def open(self, threads: int, way: int, table: int) -> None:
        """Connect so many claimers, of numbers in :data:`WAYS` and :data:`TABLES`."""
        self.owner = Owner(make_engine(self.url))
        self.owner.open()
        kind, entity = list(WAYS.values())[way], list(TABLES.values())[table]
        self.claimers = [kind(self.url, self.batch, entity, self.owner) for _ in range(threads)]
        for claimer in self.claimers:
            claimer.open()

    def drain(self) -> list[dict[str, Any]]:
        """Let all claimers work until no job is left."""
        with ThreadPoolExecutor(len(self.claimers)) as pool:
            return list(pool.map(lambda claimer: claimer.work(), self.claimers))

    def close(self) -> None:
        """Disconnect."""
        for claimer in self.claimers:
            claimer.close()
        self.owner.close()


# -- what is measured ---------------------------------------------------


def _counts(which: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(row[which].items())) or "0"

    return cell


COLUMNS: tuple[Column, ...] = (
    ("table", "{table}"),
    ("", "{way}"),
    ("batch", "{batch}"),
    ("connections", "{connections}"),
    ("jobs/s", lambda row: f"{row['jobs'] / row['seconds']:,.0f}"),
    ("claims", "{claims:,}"),
    ("short", "{short}"),
    ("p50 ms", lambda row: f"{row['claim']['p50']:.2f}" if row["claim"] else "-"),
    ("p99", lambda row: f"{row['claim']['p99']:.2f}" if row["claim"] else "-"),
    ("errors inside", _counts("inside")),
    ("surfaced", _counts("surfaced")),
    ("waiting at a time", _counts("waiting")),
    ("counted by the server", _counts("counted")),
)


def tables(figures: Figures) -> str:
    """Write a row for each number of connections."""
    return table(COLUMNS, figures["results"])


@benchmark(
    numbers("--connections", "1,8,64"),
    numbers("--batch", "1,10"),
    number("--turns", 4_000),
    click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=WAYS),
    click.option(
        "--table", "kinds", multiple=True, type=click.Choice(list(TABLES)), default=["one table"]
    ),
    tables=tables,
)
def main(
    database: Database,
    *,
    connections: tuple[int, ...],
    batch: tuple[int, ...],
    turns: int,
    ways: tuple[str, ...],
    kinds: tuple[str, ...],
) -> Figures:
    """Let more and more connections drain one queue, and count what they wait for.

    A drain has --turns batches. A claim is short if it gets less than a batch although a batch or
    more is left.
    """
    return {
        "results": [
            measure(database, kind, way, batch=size, connections=count, jobs=turns * size)
            for kind in kinds
            for way in ways
            for size in batch
            for count in connections
        ]
    }


def measure(
    database: Database, kind: str, way: str, *, batch: int, connections: int, jobs: int
) -> Row:
    """Drain a queue by many connections.

    Raises:
        JobsLost: not every job was run exactly once.
    """
    entity, path = TABLES[kind], f"{__name__}:{Threads.__name__}"
    processes = min(PROCESSES, connections)
    threads = connections // processes
    _make(database, entity)
    with hosts(processes, sys.executable, path, database.url, batch) as working:
        ask_all(working, f"open {threads} {list(WAYS).index(way)} {list(TABLES).index(kind)}")
        _fill(database, entity, jobs)
        database.settle()
        with looking(database) as seen:
            answers = ask_all(working, "drain")
        ask_all(working, "close")
    with connected(database.url) as connection:
        left = connection.execute(select(func.count()).select_from(entity)).scalar_one()
    claimers = [claimer for answer in answers for claimer in answer.result]
    run = [number for claimer in claimers for number in claimer["run"]]
    check_each_ran_once(way, range(1, jobs + 1), run, left)
    size = {"table": kind, "way": way, "batch": batch, "connections": processes * threads}
    row = {**size, "jobs": jobs, **figures_of(answers, claimers, batch, jobs), **seen}
    click.echo(table(COLUMNS, [row]).splitlines()[-1])
    return row


def _make(database: Database, entity: type[Any]) -> None:
    """Make an empty table, with its partitions."""
    with connected(database.url) as connection:
        entity.__table__.drop(connection, checkfirst=True)
        entity.__table__.create(connection)
        if database.name == "postgresql" and entity is Parted:
            for remainder in range(PARTITIONS):
                connection.exec_driver_sql(
                    f"CREATE TABLE bench_hot_parted_{remainder} PARTITION OF bench_hot_parted "
                    f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {remainder})"
                )


def _fill(database: Database, entity: type[Any], jobs: int) -> None:
    with connected(database.url) as connection:
        connection.execute(insert(entity), payloads(jobs))


def figures_of(
    answers: Sequence[Answer], claimers: Sequence[dict[str, Any]], batch: int, jobs: int
) -> Row:
    """Sum up what the claimers counted."""
    claims = [tuple(claim) for claimer in claimers for claim in claimer["claims"]]
    return {
        "seconds": max(claimer["last"] for claimer in claimers)
        - min(answer.begun for answer in answers),
        "claims": len(claims),
        "short": short_claims(claims, batch, jobs),
        "claim": latency([ended - begun for begun, ended, _ in claims]) if claims else None,
        "inside": _summed(claimer["inside"] for claimer in claimers),
        "surfaced": _summed(claimer["surfaced"] for claimer in claimers),
    }


def short_claims(claims: Sequence[tuple[float, float, int]], batch: int, jobs: int) -> int:
    """Count the claims that got less than a batch, although a batch or more was left.

    Left are the jobs that no claim got which had begun before this one ended.

    Args:
        claims: when each began and ended, and how many jobs it got.
    """
    in_order = sorted(claims)
    begins = [begun for begun, _, _ in in_order]
    taken = [0, *accumulate(got for _, _, got in in_order)]
    return sum(
        got < batch <= jobs - taken[bisect_left(begins, ended)] for _, ended, got in in_order
    )


def _summed(counters: Iterator[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(total)


@contextmanager
def looking(database: Database) -> Iterator[Row]:
    """Look at the server again and again; fill in how many connections waited on average."""
    seen: Row = {"waiting": {}, "counted": {}}
    if database.name not in WAITING:
        yield seen
        return
    engine = create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        before = _counters(connection, database)
        looks: list[Counter[str]] = []
        ended = Event()
        looker = Thread(target=_look, args=(connection, database, looks, ended))
        looker.start()
        try:
            yield seen
        finally:
            ended.set()
            looker.join()
        counted = {
            name: count - before[name] for name, count in _counters(connection, database).items()
        }
    kinds = set().union(*looks)
    means = {kind: round(fmean(look[kind] for look in looks), 1) for kind in kinds}
    seen.update(waiting=means, counted={name: count for name, count in counted.items() if count})


def _look(
    connection: Connection, database: Database, looks: list[Counter[str]], ended: Event
) -> None:
    while True:
        found = connection.exec_driver_sql(WAITING[database.name]).scalars()
        looks.append(Counter(found))
        if ended.wait(LOOK_EVERY):
            return


def _counters(connection: Connection, database: Database) -> dict[str, int]:
    rows = connection.exec_driver_sql(COUNTERS[database.name]).all()
    return {str(name): int(value) for name, value in rows}
