"""A worker's connections go silent, and nobody closes them: each call has a deadline."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, event, text
from sqlalchemy.exc import DBAPIError

# Inner: no test can close a worker's connection while its own call sleeps.
from sa_jobqueue.worker.deadlines import Deadlines
from tests.contract.worker.driver import Workers
from tests.models import Task
from tests.proxy import Proxy
from tests.support import until

DEADLINE = timedelta(seconds=1)

#: How long a statement may wait for a lock: no deadline is shorter.
LOCK_TIMEOUTS = {
    "postgresql": "SET lock_timeout = '500ms'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 1",
    "sqlite": "PRAGMA busy_timeout = 100",
}

A_NETWORK = pytest.mark.only_on("postgresql", "mysql", "mariadb")

#: A plain name: the end of an Owner's silent connection would be waited for, too.
PLAIN: dict[str, Any] = {"owner": "w", "deadline": DEADLINE, "reap_every": None}

ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb")


@pytest.fixture
def proxy(engine: Engine) -> Iterator[Proxy]:
    with Proxy(engine.url) as proxy:
        yield proxy


def impatient(workers: Workers, url: URL, **options: Any) -> Engine:
    """Create an engine for workers, which does not wait for locks for long."""
    engine = workers.engine_for(url, **options)

    def limit(driver: Any, _: Any) -> None:
        cursor = driver.cursor()
        cursor.execute(LOCK_TIMEOUTS[url.get_backend_name()])
        cursor.close()
        driver.commit()

    event.listen(engine, "connect", limit)
    return engine


@A_NETWORK
@pytest.mark.parametrize("moment", ["idle", "handler", "commit"])
def test_a_worker_goes_on_when_its_connections_go_silent(
    workers: Workers, proxy: Proxy, moment: str
) -> None:
    engine = impatient(workers, proxy.url, pool_pre_ping=moment == "idle")

    def silence(*_: Any) -> None:
        proxy.go_silent()
        proxy.speak()

    def handle(task: Task) -> None:
        workers.note(task)
        if task.name == "a" and moment == "handler":
            silence()
        if task.name == "a" and moment == "commit":
            event.listen(engine, "commit", silence, once=True)

    queue = workers.queue(Task, handle)
    with workers.running(queue, bind=engine, deadline=DEADLINE, reap_every=None) as worker:
        workers.add("a")
        until(lambda: workers.handled == ["a"])
        if moment == "idle":
            until(lambda: workers.statuses() == {"a": "done"})
            silence()
        workers.add("b")
        until(lambda: workers.statuses() == {"a": "done", "b": "done"})
        began = time.monotonic()
        worker.stop()
    assert time.monotonic() - began < 15
    assert workers.handled == ["a", "b"]
    assert {attempts for _, attempts, _ in workers.rows().values()} == {1}


@A_NETWORK
@ANYWHERE
def test_a_worker_waits_for_a_network_that_takes_connections_and_says_nothing(
    workers: Workers, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue")
    engine = impatient(workers, proxy.url)
    with workers.running(Task, bind=engine, **PLAIN):
        workers.add("a")
        until(lambda: workers.handled == ["a"])
        proxy.go_silent()
        workers.add("b")
        until(lambda: "no connection was made within" in caplog.text)
        proxy.speak()
        until(lambda: workers.handled == ["a", "b"])
    assert re.search(r"no connection was made within 1(\.\d+)? s", caplog.text)


@A_NETWORK
@ANYWHERE
def test_a_worker_ends_its_old_session_as_soon_as_the_network_lets_it(
    workers: Workers, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue")
    engine = impatient(workers, proxy.url)

    def handle(task: Task) -> None:
        workers.note(task)
        event.listen(engine, "commit", lambda _: proxy.go_silent(), once=True)

    queue = workers.queue(Task, handle)
    with workers.running(queue, bind=engine, **PLAIN):
        workers.add("a")
        until(lambda: "no connection was made within" in caplog.text)
        proxy.speak()
        until(lambda: workers.statuses() == {"a": "done"})  # whose row the old session has locked
    assert workers.handled == ["a"]


@A_NETWORK
@ANYWHERE
def test_a_stop_waits_no_longer_than_the_grace_for_a_network_that_says_nothing(
    workers: Workers, proxy: Proxy
) -> None:
    engine, asked = workers.engine_for(proxy.url), list[float]()
    event.listen(engine, "do_connect", lambda *_: asked.append(time.monotonic()))
    grace = timedelta(seconds=1)
    with workers.running(Task, bind=engine, grace=grace, reap_every=None) as worker:
        until(lambda: worker.trouble is None)
        proxy.go_silent()
        proxy.end_all()
        asked.clear()
        until(lambda: asked)
        began = time.monotonic()
        worker.stop()
    assert time.monotonic() - began < 15


FOR_EVER = (
    "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0) "
    "SELECT count(*) FROM n) > 0"
)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage: SQLite frees its file, too, when the last cursor of a connection goes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.only_on("sqlite")
@pytest.mark.usefixtures("no_collection")
def test_a_statement_that_lasts_for_ever_frees_the_file_of_sqlite(workers: Workers) -> None:
    workers.add("a")
    engine, hung = impatient(workers, workers.plain.url), threading.Event()

    def hang(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and not hung.is_set():  # the file is locked by now
            hung.set()
            connection.exec_driver_sql(f"SELECT {FOR_EVER}")

    event.listen(engine, "before_cursor_execute", hang)
    with workers.running(Task, bind=engine, deadline=timedelta(milliseconds=300)):
        assert hung.wait(10)
        workers.add("b")  # it waits for the file as long as the engine of the tests does
        until(lambda: sorted(workers.handled) == ["a", "b"])


@pytest.mark.only_on("sqlite")
@pytest.mark.process
def test_a_process_ends_whose_call_cannot_be_cut_off(tmp_path: Any) -> None:
    script = f"""
import time
from datetime import timedelta

from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.models import Base, Task

engine = create_engine("sqlite:///{tmp_path}/jobs", connect_args={{"timeout": 0.1}})


@event.listens_for(engine, "connect")
def hang_in_the_driver(connection, record):
    connection.create_function("hang", 0, lambda: time.sleep(60))


Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    session.add(Task(name="a"))
queue = JobQueue(Task, text("hang() IS NULL"))
queue.handler()(print)
Worker(engine, queue, deadline=timedelta(milliseconds=200)).run()
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, "has not returned" in done.stderr) == (70, True), done.stderr
    assert time.monotonic() - began < 45


@A_NETWORK
@ANYWHERE
def test_a_worker_goes_on_whose_connection_is_silent_when_it_is_closed(
    workers: Workers, proxy: Proxy
) -> None:
    engine = impatient(workers, proxy.url, poolclass=NullPool)

    def silence(*_: Any) -> None:
        proxy.go_silent()
        proxy.speak()

    with workers.running(Task, bind=engine, **PLAIN):
        workers.add("a")
        until(lambda: workers.handled == ["a"])
        event.listen(engine, "checkin", silence, once=True)
        workers.add("b")
        until(lambda: workers.statuses() == {"a": "done", "b": "done"})


@A_NETWORK
@ANYWHERE
def test_a_worker_goes_on_whose_new_connections_go_silent_before_their_first_statement(
    workers: Workers, proxy: Proxy
) -> None:
    engine = impatient(workers, proxy.url)
    silent: list[Any] = []

    def silence(driver: Any, _: Any) -> None:  # before the listener that sets the lock timeout
        if len(silent) < 2:
            silent.append(driver)
            proxy.go_silent()
            proxy.speak()

    with workers.running(Task, bind=engine, **PLAIN):
        workers.add("a")
        until(lambda: workers.statuses() == {"a": "done"})
        event.listen(engine, "connect", silence, insert=True)
        engine.dispose(close=False)
        workers.add("b")
        until(lambda: workers.statuses() == {"a": "done", "b": "done"})
    assert len(silent) == 2


@pytest.mark.only_on("postgresql")
def test_a_connection_that_is_closed_under_a_call_does_not_end_the_deadlines_of_others(
    engine: Engine,
) -> None:
    """psycopg2 tells no file number of a closed connection, but raises."""
    with Deadlines(engine, timedelta(seconds=0.5)) as deadlines:
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.close()
            deadlines.call(engine.dialect, driver, "a call", lambda: time.sleep(0.8))
            connection.invalidate()
        began = time.monotonic()
        with engine.connect() as connection, pytest.raises(DBAPIError):
            connection.execute(text("SELECT pg_sleep(9)"))

    assert time.monotonic() - began < 5
