"""One worker over several databases: what each costs, and what the others feel when one is away.

Two databases of PostgreSQL, one of MySQL and one of MariaDB get a hundred jobs a second each, in
batches of five. In turn, the first is killed by SIGKILL and starts again, the second is read-only,
and the third falls silent behind a proxy. The latency is from just before the INSERT to the start
of the handler. The clock is the machine's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
from sqlalchemy import Engine, String, create_engine, event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.harness.command import number, run_by_name
from benchmarks.harness.report import Row, titled
from sa_jobqueue import JobMixin, JobQueue, enqueue
from sa_jobqueue.worker import Worker, job_context
from tests.chaos.own_server import OwnServer
from tests.processes import FORKSERVER
from tests.proxy import Proxy

if __name__ == "__main__":
    run_by_name(__spec__.name)

#: Jobs of an INSERT, and the seconds from one to the next: a hundred jobs a second.
BATCH, EVERY = 5, 0.05

#: Seconds that a worker may need to begin, or to come back.
WARM_UP = 5.0

#: A database has caught up when fewer jobs are left, or so many seconds are over.
BACKLOG, PATIENCE = 50, 90.0

#: Jobs for the processor time, and how many databases they are divided among.
JOBS, DIVIDED = 8_000, (1, 8)

#: Databases of one server that idle, each a schema of PostgreSQL or a database of MySQL.
IDLING = 50


class Base(DeclarativeBase):
    pass


class Sent(JobMixin, Base):
    """A job that knows when it was sent."""

    __tablename__ = "bench_sent"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[str] = mapped_column(String(30))


def engine_on(url: str) -> Engine:
    """Make an engine with the settings of docs/databases.md."""
    if url.startswith("postgresql"):
        return create_engine(url, pool_pre_ping=True)
    # A deadline of the worker is longer than any wait for a lock, which is 50 s by default.
    wait = {"init_command": "SET innodb_lock_wait_timeout=5"}
    return create_engine(
        url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=wait
    )


@click.command("many")
@number("--seconds", 10)
def main(*, seconds: int) -> None:
    """Measure a worker over several databases: faults of one, processor time, and idling."""
    with ExitStack() as stack:
        servers = {
            "killed": OwnServer("postgresql", None, {}, None),
            "postgresql": OwnServer("postgresql", None, {}, None),
            "mysql": OwnServer("mysql", None, {}, None),
            "mariadb": OwnServer("mariadb", None, {}, None),
        }
        for own in servers.values():
            stack.callback(own.stop)
        for title, columns, measured in (
            ("The others while one is away", _OTHERS, _apart(servers, seconds)),
            ("Processor time", _COSTS, _costs(servers["postgresql"])),
            ("Idling", _IDLE, _idling(servers)),
        ):
            click.echo(f"{titled((title, columns, list(measured)))}\n")


# -- the others while one is away -------------------------------------------------

_OTHERS = (
    ("one database is", "{what}"),
    ("jobs of the others", "{jobs}"),
    *((f"{when}: p50, p99 ms", f"{{{when}}}") for when in ("before", "during", "after")),
    ("it has caught up after s", "{back:.1f}"),
)


def _apart(servers: Mapping[str, OwnServer], seconds: int) -> Iterator[Row]:
    direct = {name: own.server.create_database("many") for name, own in servers.items()}
    urls = {name: url.render_as_string(hide_password=False) for name, url in direct.items()}
    for url in urls.values():
        Base.metadata.create_all(engine_on(url))
    postgresql = create_engine(servers["postgresql"].server.url, isolation_level="AUTOCOMMIT")

    def read_only(on: str) -> None:
        name = direct["postgresql"].database
        with postgresql.connect() as connection:
            connection.exec_driver_sql(
                f'ALTER DATABASE "{name}" SET default_transaction_read_only = {on}'
            )
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
                ),
                {"name": name},
            )

    with Proxy(direct["mysql"]) as proxy:
        through = {**urls, "mysql": proxy.url.render_as_string(hide_password=False)}
        faults: dict[str, tuple[str, Callable[[], None], Callable[[], None]]] = {
            "killed": ("killed", servers["killed"].crash, servers["killed"].revive),
            "read-only": ("postgresql", lambda: read_only("on"), lambda: read_only("off")),
            "silent": ("mysql", proxy.go_silent, proxy.speak),
        }
        windows: list[tuple[str, str, dict[str, tuple[float, float]], float]] = []
        with _serving(through) as ended, _producing(urls):
            time.sleep(WARM_UP)
            for what, (hit, begin, end) in faults.items():
                spans = {"before": _span(seconds, begin), "during": _span(seconds, end)}
                back = _caught_up(urls[hit])
                spans["after"] = _span(seconds, lambda: None)
                windows.append((what, hit, spans, back))
        handled = ended()
    for what, hit, spans, back in windows:
        others = [times for name, *times in handled if name != hit]
        figures, jobs = {}, 0
        for when, (since, until) in spans.items():
            found = sorted(began - sent for sent, began in others if since <= sent < until)
            jobs += len(found)
            half, most = (found[len(found) * part // 100] * 1_000 for part in (50, 99))
            figures[when] = f"{half:.1f}, {most:.1f}"
        yield {"what": what, "jobs": jobs, "back": back, **figures}


def _span(seconds: int, then: Callable[[], None]) -> tuple[float, float]:
    """Wait, and do something; return when the wait began and ended."""
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    then()
    return begin, end


def _caught_up(url: str) -> float:
    """Wait until the worker has done what piled up; return for how many seconds."""
    begin, engine = time.monotonic(), engine_on(url)
    waiting = select(func.count()).where(Sent.status != "done")
    left = BACKLOG
    while left >= BACKLOG and time.monotonic() < begin + PATIENCE:
        time.sleep(0.2)
        with Session(engine) as session:
            left = session.scalars(waiting).one()
    engine.dispose()
    return time.monotonic() - begin


@contextmanager
def _serving(urls: Mapping[str, str]) -> Iterator[Callable[[], list[tuple[str, float, float]]]]:
    """Run a worker in a process of its own; what it yields tells what the worker has handled."""
    here, there = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=_serve, args=(urls, there), daemon=True)
    process.start()
    try:
        yield here.recv
    finally:
        here.send("stop")
        # A pipe is full before a process has sent all.
        here.poll(120)


def _serve(urls: Mapping[str, str], pipe: Pipe) -> None:
    handled: list[tuple[str, float, float]] = []

    def note(job: Sent) -> None:
        handled.append((job_context().database or "", float(job.at), time.monotonic()))

    engines = {name: engine_on(url) for name, url in urls.items()}
    worker = Worker(engines, JobQueue(Sent), note, concurrency=8)
    running = threading.Thread(target=worker.run)
    running.start()
    pipe.recv()
    time.sleep(WARM_UP)
    worker.stop()
    running.join()
    pipe.send(handled)


@contextmanager
def _producing(urls: Mapping[str, str]) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=_produce, args=(url, over)) for url in urls.values()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _produce(url: str, over: threading.Event) -> None:
    engine, due = engine_on(url), time.monotonic()
    while not over.wait(max(0.0, due - time.monotonic())):
        due = max(due + EVERY, time.monotonic() - 1)
        try:
            with Session(engine) as session:
                enqueue(session, Sent, [{"at": repr(time.monotonic())}] * BATCH)
                session.commit()
        except DBAPIError:  # it is away
            time.sleep(0.1)
    engine.dispose()


# -- processor time -----------------------------------------------------------------

_COSTS = (("databases", "{databases}"), ("CPU ms a job", "{cpu:.3f}"), ("jobs/s", "{rate:,.0f}"))


def _costs(own: OwnServer) -> Iterator[Row]:
    for databases in DIVIDED:
        urls = {}
        for index in range(databases):
            url = own.server.create_database(f"cost_{databases}_{index}")
            urls[str(index)] = url.render_as_string(hide_password=False)
            engine = engine_on(urls[str(index)])
            Base.metadata.create_all(engine)
            with Session(engine) as session:
                enqueue(session, Sent, ({"at": "0"} for _ in range(JOBS // databases)))
                session.commit()
            engine.dispose()
        cpu, seconds = _in_a_process(_drain, urls)
        yield {"databases": databases, "cpu": cpu * 1_000 / JOBS, "rate": JOBS / seconds}


def _drain(urls: Mapping[str, str], pipe: Pipe) -> None:
    engines: Any = {name: engine_on(url) for name, url in urls.items()}
    worker = Worker(engines, JobQueue(Sent), lambda job: None, limit=10, drain=True)
    cpu, began = time.process_time(), time.monotonic()
    worker.run()
    pipe.send((time.process_time() - cpu, time.monotonic() - began))


def _in_a_process(target: Callable[..., None], *given: Any) -> Any:
    here, there = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=target, args=(*given, there), daemon=True)
    process.start()
    result = here.recv()
    process.join()
    return result


# -- idling -----------------------------------------------------------------------------

_IDLE = (
    ("", "{what}"),
    ("connections", "{connections}"),
    ("statements/s", "{statements:.1f}"),
    ("CPU ms/s", "{cpu:.1f}"),
)


def _idling(servers: Mapping[str, OwnServer]) -> Iterator[Row]:
    for kind, places in (("postgresql", "schemas"), ("mysql", "databases")):
        server = servers[kind].server
        for count in (1, IDLING):
            url = server.create_database(f"idle_{count}")
            written = url.render_as_string(hide_password=False)
            names = [f"idle_{count}_{index}" for index in range(count)]
            engine = engine_on(written)
            with engine.begin() as connection:
                for name in names:
                    connection.exec_driver_sql(f"CREATE SCHEMA {name}")
            for name in names:
                Base.metadata.create_all(_translated(engine, name))
            engine.dispose()
            yield {"what": f"{count} {places} of {kind}", **_idle_in(kind, written, names)}


def _translated(engine: Engine, name: str) -> Any:
    return engine.execution_options(schema_translate_map={None: name})


#: Seconds in which statements are counted, after a worker has been idle for some.
COUNTED, QUIET = 20.0, 15.0

_CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE command <> 'Daemon'",
}


def _idle_in(kind: str, url: str, names: Sequence[str]) -> Row:
    here, there = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=_idle, args=(url, names, there), daemon=True)
    process.start()
    time.sleep(QUIET)
    looking = create_engine(url)
    here.send("count")
    time.sleep(COUNTED)
    with looking.connect() as connection:
        connections = connection.scalar(text(_CONNECTIONS[kind])) - 1
    looking.dispose()
    statements, cpu = here.recv()
    process.join()
    return {
        "connections": connections,
        "statements": statements / COUNTED,
        "cpu": cpu * 1_000 / COUNTED,
    }


def _idle(url: str, names: Sequence[str], pipe: Pipe) -> None:
    counted = [0]

    def count(*_: object) -> None:
        counted[0] += 1

    event.listen(Engine, "before_cursor_execute", count)
    engine = engine_on(url)
    worker = Worker(
        {name: _translated(engine, name) for name in names}, JobQueue(Sent), lambda job: None
    )
    running = threading.Thread(target=worker.run)
    running.start()
    pipe.recv()
    before, cpu = counted[0], time.process_time()
    time.sleep(COUNTED)
    told = counted[0] - before, time.process_time() - cpu
    time.sleep(1)  # somebody looks at the connections
    pipe.send(told)
    worker.stop()
    running.join()
