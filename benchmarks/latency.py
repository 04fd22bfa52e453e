"""From the COMMIT of a job to the start of its handler, in a worker of another process.

The clock is the machine's own, which all processes share. The first figures are of a worker that is
idle between any two jobs, the next ones of jobs that one process inserts as quickly as it can.
Beside them stands what an idle worker costs: what its server counts (transactions on PostgreSQL,
statements on MySQL and MariaDB), and the processor's time of its process. PostgreSQL's count has
the transactions of its own autovacuum, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy import create_engine, text

from benchmarks.adapters.catalogue import CATALOGUE
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.processes import Host, ask_all, hosts
from benchmarks.harness.report import Figures, Row, table

if __name__ == "__main__":
    run_by_name(__spec__.name)

OURS = "benchmarks.adapters.serving"

#: Each way with its adapter: ``module:class``; of a peer its name in the catalogue.
POLLING = {"Worker": f"{OURS}:TheWorker", "AsyncWorker": f"{OURS}:TheAsyncWorker"}
NOTIFIED = {
    "Worker, notify": f"{OURS}:TheNotifiedWorker",
    "AsyncWorker, notify": f"{OURS}:TheNotifiedAsyncWorker",
}
PEERS = ("pgqueuer", "procrastinate")

#: How many jobs a worker takes at once.
BATCH = 10

#: Milliseconds between two jobs, after which the worker is idle again; and none.
IDLE, BUSY = (50, 250), (0, 0)

#: The first jobs do not count: the worker starts, and builds its statements.
WARM_UP = 5

#: Seconds that a worker may need to start, and to end its last job.
MARGIN = 5.0

#: For so many seconds an idle worker's statements are counted.
COUNTED = 5.0

#: Processes that insert jobs at once, and for how many milliseconds.
INSERTERS, INSERT_FOR = 8, 3_000

#: What servers count.
COUNTERS = {
    "postgresql": "SELECT xact_commit + xact_rollback FROM pg_stat_database "
    "WHERE datname = current_database()",
    "mysql": "SELECT VARIABLE_VALUE FROM performance_schema.global_status "
    "WHERE VARIABLE_NAME = 'Questions'",
    "mariadb": "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
    "WHERE VARIABLE_NAME = 'Questions'",
}


def tables(figures: Figures) -> str:
    """Write a row for each way, then the figures of crowds."""
    columns = (
        ("", "{way}"),
        ("p50 ms", "{p50:.1f}"),
        ("p99 ms", "{p99:.1f}"),
        ("p50 ms, busy", "{busy_p50:.1f}"),
        ("p99 ms, busy", "{busy_p99:.1f}"),
        ("asked/s, just idle", "{idle}"),
        ("asked/s, later", "{quiet}"),
        ("CPU ms/s, idle", "{cpu:.1f}"),
    )
    crowds = (("", "{what}"), ("", "{figure}"))
    return table(columns, figures["results"]) + "\n\n" + table(crowds, figures["crowds"])


@benchmark(
    number("--jobs", 200),
    number("--quiet", 60),
    number("--herd", 50),
    click.option("--peers/--no-peers", default=True, show_default=True),
    click.option(
        "--way",
        "chosen",
        type=click.Choice([*POLLING, *NOTIFIED, *PEERS]),
        multiple=True,
        help="Measure this way, and not the crowds; may be given several times. Default: all.",
    ),
    tables=tables,
)
def main(
    database: Database, *, jobs: int, quiet: int, herd: int, peers: bool, chosen: tuple[str, ...]
) -> Figures:
    """Measure from commit to handler, in idle and busy workers; and what an idle one costs."""
    ways = dict(POLLING)
    if database.name == "postgresql":
        ways |= NOTIFIED | {name: name for name in PEERS if peers}
    results = []
    for way, path in ways.items():
        if chosen and way not in chosen:
            continue
        row = _measured(way, path, database, jobs, quiet)
        click.echo(f"{way:>20}: p50 {row['p50']:.1f} ms, p99 {row['p99']:.1f} ms")
        results.append(row)
    return {"results": results, "crowds": [] if chosen else _crowds(database, herd)}


def _measured(way: str, path: str, database: Database, jobs: int, quiet: int) -> Row:
    with _pair(path, database) as (keeper, worker):
        idle = latencies(keeper, worker, jobs, IDLE)
        busy = latencies(keeper, worker, jobs, BUSY)
        costs = _costs_of_idling(database, keeper, worker, quiet)
    return {
        "way": way,
        "p50": idle[len(idle) // 2],
        "p99": idle[len(idle) * 99 // 100],
        "busy_p50": busy[len(busy) // 2],
        "busy_p99": busy[len(busy) * 99 // 100],
        **costs,
    }


@contextmanager
def _pair(path: str, database: Database) -> Iterator[tuple[Host, Host]]:
    """Run a process that inserts jobs, and one for a worker."""
    python = None
    if path in CATALOGUE:
        entry = CATALOGUE[path]
        path, python = entry.path_on(database.name), entry.interpreter()
    with _hosts(2, path, database, python) as (keeper, worker):
        yield keeper, worker


@contextmanager
def _hosts(
    count: int, path: str, database: Database, python: str | None = None
) -> Iterator[list[Host]]:
    python = python or CATALOGUE["Worker"].interpreter()
    with hosts(count, python, path, database.url, BATCH) as made:
        made[0].ask("create")
        ask_all(made[1:], "open")
        yield made


def latencies(keeper: Host, worker: Host, jobs: int, pause: tuple[int, int]) -> list[float]:
    """Return the milliseconds from each COMMIT to the start of the handler, sorted."""
    shortest, longest = pause
    seconds = (jobs + WARM_UP) * (0.02 + longest / 1_000) + 2 * MARGIN
    worker.tell(f"serve {seconds * 1_000:.0f}")
    time.sleep(MARGIN)
    committed = keeper.ask(f"fill_singly {jobs + WARM_UP} {shortest} {longest}").result
    began = sorted(worker.answer().result["began"])
    assert len(began) == len(committed), f"{len(began)} of {len(committed)} jobs began in time"
    found = ((start - end) * 1_000 for start, end in zip(began, committed, strict=True))
    return sorted(list(found)[WARM_UP:])


def _costs_of_idling(database: Database, keeper: Host, worker: Host, quiet: int) -> Row:
    """Count what a worker asks its server right after a job, and after a quiet time."""
    counted = database.name in COUNTERS
    worker.tell(f"serve {(MARGIN + quiet + 2 * COUNTED) * 1_000:.0f}")
    time.sleep(MARGIN)
    keeper.ask("fill 1")
    idle = _asked_in_a_second(database) if counted else "-"
    time.sleep(max(0.0, quiet - COUNTED))
    later = _asked_in_a_second(database) if counted else "-"
    seconds = worker.answer()
    return {"idle": idle, "quiet": later, "cpu": seconds.result["cpu"] * 1_000 / seconds.seconds}


def _asked_in_a_second(database: Database) -> str:
    engine = create_engine(database.url)

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text(COUNTERS[database.name])))

    time.sleep(1)  # PostgreSQL's processes tell their counts once a second
    before = count()
    time.sleep(COUNTED)
    own = 4  # statements or transactions of each of our own looks, at most
    asked = max(0, count() - before - own)
    engine.dispose()
    return f"{asked / COUNTED:.1f}"


def _crowds(database: Database, herd: int) -> list[dict[str, Any]]:
    """Measure many workers, many notifications, and many who insert."""
    found = []
    notifies = database.name == "postgresql"
    way = NOTIFIED["Worker, notify"] if notifies else POLLING["Worker"]
    with _pair(way, database) as (keeper, worker):
        before, after = worker.ask(f"herd {herd}").result
        found += [
            _figure(f"statements of {herd} idle workers in a second", before),
            _figure("the same, in the second of a job's COMMIT", after),
        ]
        if notifies:
            worker.tell(f"serve {2 * MARGIN * 1_000:.0f}")
            time.sleep(MARGIN)
            flood = keeper.ask("flood 10000")
            committed = keeper.ask("fill 1").ended
            (began,) = worker.answer().result["began"]
            found += [
                _figure("ms of a transaction with 10,000 NOTIFYs", flood.seconds * 1_000),
                _figure("ms from the COMMIT of a job after it", (began - committed) * 1_000),
            ]
    if notifies:
        found += [
            _figure(
                f"jobs/s that {INSERTERS} processes insert one by one",
                _inserted(POLLING["Worker"], database),
            ),
            _figure("the same, with notify", _inserted(NOTIFIED["Worker, notify"], database)),
        ]
    return found


def _inserted(path: str, database: Database) -> float:
    with _hosts(INSERTERS + 1, path, database) as (_, *inserters):
        answers = ask_all(inserters, f"insert_for {INSERT_FOR}")
    return float(sum(answer.result for answer in answers) * 1_000 / INSERT_FOR)


def _figure(what: str, figure: float) -> dict[str, Any]:
    return {"what": what, "figure": f"{figure:,.1f}".removesuffix(".0")}
