"""One worker handles the jobs of several databases: each is waited for alone."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

from sa_jobqueue import ArgumentError, JobQueue, Owner, OwnerState, owner_state
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.wakeups import watcher

# Inner: nobody waits for 30 seconds until a function is asked again; nothing is kept for a second.
from sa_jobqueue.worker import Retry, Worker, crew, job_context, sites
from tests.clock import Clock
from tests.contract.wakeups import support as wakeups
from tests.contract.worker.driver import Workers
from tests.contract.worker.test_silent_network import impatient
from tests.models import Base, Task
from tests.proxy import Proxy
from tests.support import cut_connections, make_engine, statements_seen, until

SECOND = timedelta(seconds=1)

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

A_NETWORK = pytest.mark.only_on("postgresql", "mysql", "mariadb")


class Many:
    """Several databases of one worker.

    Args:
        plain: engines of the test's own, by the names of their databases.

    Attributes:
        engines: those of the worker.
        handled: the database and the name of each job that was handled, in this order.
        most: how many handlers ran at once.
    """

    def __init__(self, workers: Workers, plain: dict[str, Engine]) -> None:
        self.workers, self.plain = workers, plain
        self.engines = {name: workers.engine_for(it.url) for name, it in plain.items()}
        self.handled: list[tuple[str | None, str]] = []
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()

    def add(self, database: str, *names: str) -> None:
        """Commit a job for each name."""
        with Session(self.plain[database]) as session, session.begin():
            session.add_all([Task(name=name) for name in names])

    def jobs(self, count: int) -> set[tuple[str | None, str]]:
        """Commit so many jobs to each database; return what is to be handled."""
        names = [str(number) for number in range(count)]
        for database in self.plain:
            self.add(database, *names)
        return {(database, name) for database in self.plain for name in names}

    def statuses(self, database: str) -> dict[str, str]:
        """Return the status of each job, by its name."""
        with self.plain[database].connect() as connection:
            found = connection.execute(select(Task.name, Task.status))
            return {row.name: row.status for row in found}

    def left(self) -> int:
        """Count the jobs that are not done."""
        count, total = select(func.count()).where(Task.status != "done"), 0
        for engine in self.plain.values():
            with engine.connect() as connection:
                total += connection.scalar(count) or 0
        return total

    def note(self, job: Any, during: Callable[[Any], object] = lambda job: None) -> None:
        """Handle a job."""
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        during(job)
        with self._lock:
            self._running -= 1
            self.handled.append((job_context().database, job.name))

    def has_handled(self, database: str, name: str) -> bool:
        """Tell whether a job was handled."""
        return (database, name) in self.handled

    def go_through(self, proxy: Proxy) -> None:
        """Have the worker reach "us" by a proxy, and wait nowhere for locks for long."""
        urls = {**{name: it.url for name, it in self.plain.items()}, "us": proxy.url}
        self.engines = {name: impatient(self.workers, url) for name, url in urls.items()}

    def count(self, database: str) -> int:
        """Count the handled jobs of a database."""
        return [name for name, _ in self.handled].count(database)

    def queue(self, during: Callable[[Any], object] = lambda job: None) -> JobQueue[Any]:
        """Return the queue of tasks, whose handler notes them."""
        return self.workers.queue(Task, partial(self.note, during=during))

    def running(self, queue: Any = None, **options: Any) -> Any:
        """Run a worker of all databases beside the test."""
        queue = queue or self.queue()
        return self.workers.running(queue, **{"bind": self.engines, **options})


def sqlite_at(path: Path) -> Engine:
    """Create a file with the tables."""
    engine = make_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def files(workers: Workers, tmp_path: Path) -> Iterator[Many]:
    """Three databases that are files, whatever the database of the other tests is."""
    plain = {name: sqlite_at(tmp_path / f"{name}.db") for name in ("eu", "us", "asia")}
    many = Many(workers, plain)
    yield many
    close(many)


@pytest.fixture
def many(workers: Workers, own_engine: Engine, tmp_path: Path) -> Iterator[Many]:
    """Two databases of the server, and one that is a file."""
    asia = sqlite_at(tmp_path / "asia.db")
    many = Many(workers, {"eu": workers.plain, "us": own_engine, "asia": asia})
    yield many
    close(many)


def close(many: Many) -> None:
    for engine in many.engines.values():
        engine.dispose(close=not many.workers.awaits)
    many.plain["asia"].dispose()


# What it handles


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_jobs_of_all_databases_are_handled_once_each(many: Many, concurrency: int) -> None:
    expected = many.jobs(30)

    many.workers.drain(many.queue(), bind=many.engines, concurrency=concurrency)

    assert sorted(map(str, many.handled)) == sorted(map(str, expected))
    assert many.left() == 0
    assert many.most <= concurrency


def test_an_idle_worker_wakes_up_for_a_job_in_any_database(many: Many) -> None:
    with many.running(poll=timedelta(minutes=1)) as worker:
        until(lambda: worker.trouble is None)
        for database in many.plain:
            many.add(database, "a")
            until(partial(many.has_handled, database, "a"), 15)
    assert many.left() == 0


@ANYWHERE
def test_all_databases_share_the_handlers_and_none_starves(files: Many) -> None:
    files.jobs(20)

    files.workers.drain(files.queue(lambda job: time.sleep(0.005)), bind=files.engines, limit=1)

    assert files.most == 1
    assert {name for name, _ in files.handled[:8]} == {"eu", "us", "asia"}


@ANYWHERE
def test_long_jobs_of_one_database_leave_the_next_free_handler_to_the_others(files: Many) -> None:
    goes_on = threading.Event()
    files.add("eu", *"abcd")
    names = ["eu"]

    def handle(job: Any) -> None:
        if job_context().database == "eu":
            names.append(job.name)
            goes_on.wait(30)

    queue = files.queue(handle)
    with files.running(queue, concurrency=2):
        until(lambda: len(names) == 3)
        files.add("us", "a", "b")
        time.sleep(0.3)  # the loop of "us" has asked by now
        goes_on.set()
        until(lambda: files.left() == 0)
    assert files.most == 2
    assert ("us", "a") in files.handled[:4]


@ANYWHERE
def test_the_limit_is_of_the_jobs_in_hand_in_all_databases(files: Many) -> None:
    goes_on = threading.Event()
    files.jobs(5)

    def claimed() -> int:
        found = [*map(files.statuses, files.plain)]
        return sum([*statuses.values()].count("claimed") for statuses in found)

    with files.running(files.queue(lambda job: goes_on.wait(30)), concurrency=2, limit=2):
        until(lambda: claimed() == 2)
        time.sleep(0.5)
        assert claimed() == 2
        goes_on.set()
        until(lambda: files.left() == 0)


def test_a_transactional_handler_writes_to_the_database_of_its_job(many: Many) -> None:
    expected = many.jobs(3)
    urls: dict[str | None, set[str]] = {}

    def handle(session: Session, task: Task) -> None:
        database = job_context().database
        urls.setdefault(database, set()).add(str(session.connection().engine.url.database))
        session.execute(update(Task).where(Task.id == task.id).values(priority=77))
        many.handled.append((database, task.name))

    queue = many.workers.queue(Task, handle, transactional=True)
    many.workers.drain(queue, bind=many.engines, concurrency=2)

    assert sorted(map(str, many.handled)) == sorted(map(str, expected))
    assert urls == {name: {str(engine.url.database)} for name, engine in many.plain.items()}
    for engine in many.plain.values():
        with Session(engine) as session:
            assert set(session.execute(select(Task.status, Task.priority))) == {("done", 77)}


@ANYWHERE
def test_a_database_may_be_given_as_the_applications_sessions(files: Many) -> None:
    class Own(Session):
        pass

    kinds = set[bool]()
    queue = files.workers.queue(
        Task, lambda session, task: kinds.add(isinstance(session, Own)), transactional=True
    )
    files.jobs(1)
    binds: dict[str, Any] = {}
    for name, engine in files.engines.items():
        files.workers.engine = engine
        binds[name] = files.workers.sessions(Own)

    files.workers.drain(queue, bind=binds)

    assert (kinds, files.left()) == ({True}, 0)


@ANYWHERE
def test_a_mapping_of_one_database_works_as_that_database_does_and_names_it(files: Many) -> None:
    files.add("eu", "a")
    files.workers.drain(files.queue(), bind={"eu": files.engines["eu"]})
    assert files.handled == [("eu", "a")]


@ANYWHERE
def test_a_worker_of_one_database_has_no_name_for_it(files: Many) -> None:
    files.add("eu", "a")
    files.workers.drain(files.queue(), bind=files.engines["eu"])
    assert files.handled == [(None, "a")]


@pytest.mark.parametrize("given", [None, "shop-1"])
def test_each_database_has_an_owner_of_its_own_unless_a_plain_name_is_given(
    many: Many, given: str | None
) -> None:
    many.jobs(1)
    owners: dict[str | None, str] = {}
    states: dict[str | None, OwnerState] = {}

    def handle(job: Any) -> None:
        database, owner = job_context().database, job_context().owner
        assert database is not None
        owners[database] = owner
        with Session(many.plain[database]) as session:
            states[database] = owner_state(session, owner)

    many.workers.drain(many.queue(handle), bind=many.engines, owner=given)

    expected = OwnerState.UNKNOWN if given else OwnerState.ALIVE
    assert states == dict.fromkeys(many.plain, expected)
    assert len(set(owners.values())) == (1 if given else 3)


# The schemas of one database, or the databases of a server, by one engine


@pytest.fixture
def tenants(workers: Workers, own_engine: Engine) -> Iterator[Many]:
    """Four schemas, which are databases to MySQL and MariaDB; all share a pool of three."""
    name = own_engine.url.database or ""
    schemas = [f"{name}_{number}"[-40:] for number in range(4)]

    def of(schema: str, bind: Engine) -> Engine:
        return bind.execution_options(schema_translate_map={None: schema})

    with own_engine.begin() as connection:
        for schema in schemas:
            connection.execute(CreateSchema(schema))
    engine = workers.engine_for(own_engine.url, pool_size=3, max_overflow=0)
    many = Many(workers, {schema: of(schema, own_engine) for schema in schemas})
    many.engines = {schema: of(schema, engine) for schema in schemas}
    for translated in many.plain.values():
        Base.metadata.create_all(translated)
    yield many
    with own_engine.begin() as connection:
        for schema in schemas:
            drop = DropSchema(schema, cascade=connection.dialect.name == "postgresql")
            connection.execute(drop)


def connections_beside(own_engine: Engine) -> int:
    """Count the connections to a database but those of its test."""
    own_engine.dispose()
    numbers: list[int] = []

    def note(found: list[int]) -> list[int]:
        numbers.extend(found)
        return []

    cut_connections(own_engine.url, alias_of(own_engine), note)
    return len(numbers)


def alias_of(engine: Engine) -> str:
    return "postgresql" if engine.dialect.name == "postgresql" else "mysql"


@A_NETWORK
def test_the_schemas_of_one_engine_share_its_pool_a_lock_connection_and_one_for_wake_ups(
    tenants: Many, own_engine: Engine
) -> None:
    with tenants.running(concurrency=2) as worker:
        until(lambda: worker.trouble is None)
        expected = tenants.jobs(10)
        until(lambda: tenants.left() == 0)
        time.sleep(1)  # an idle worker looks, and gives its connections back

        assert connections_beside(own_engine) <= 3 + 1 + 1

    assert sorted(map(str, tenants.handled)) == sorted(map(str, expected))


@A_NETWORK
def test_all_go_on_when_the_connection_of_their_locks_is_cut(
    tenants: Many, own_engine: Engine
) -> None:
    owners: dict[str | None, set[str]] = {name: set() for name in tenants.plain}

    def handle(job: Any) -> None:
        owners[job_context().database].add(job_context().owner)

    with tenants.running(tenants.queue(handle)) as worker:
        until(lambda: worker.trouble is None)
        expected = tenants.jobs(5)
        until(lambda: tenants.left() == 0)
        tenants.handled.clear()
        own_engine.dispose()

        cut_connections(own_engine.url, alias_of(own_engine))

        tenants.jobs(5)
        until(lambda: tenants.left() == 0)
    assert sorted(map(str, tenants.handled)) == sorted(map(str, expected))
    assert [len(names) for names in owners.values()] == [2] * 4  # one before, and one after


@pytest.mark.usefixtures("asked_often")
@A_NETWORK
def test_a_schema_that_is_gone_leaves_the_locks_of_the_others_alone(tenants: Many) -> None:
    told, owners = dict(tenants.engines), dict[str | None, str]()

    def handle(job: Any) -> None:
        owners[job_context().database] = job_context().owner

    def state(name: str) -> OwnerState:
        with Session(tenants.plain[name]) as session:
            return owner_state(session, owners[name])

    with tenants.running(tenants.queue(handle), bind=lambda: {**told}):
        tenants.jobs(1)
        until(lambda: tenants.left() == 0)
        gone, *stay = told
        del told[gone]

        until(lambda: state(gone) is OwnerState.DEAD)

        assert [state(name) for name in stay] == [OwnerState.ALIVE] * 3
    assert [state(name) for name in stay] == [OwnerState.DEAD] * 3


@A_NETWORK
@pytest.mark.parametrize("workers", ["threads"], indirect=True)
def test_a_verb_of_this_process_wakes_only_the_schema_that_it_writes_to(tenants: Many) -> None:
    (name, engine), *_ = tenants.engines.items()
    with tenants.running(poll=timedelta(hours=1), reap_every=None) as worker:
        until(lambda: worker.trouble is None)
        time.sleep(1)
        with statements_seen(Engine) as seen, Session(engine) as session:
            session.add(Task(name="a"))
            session.commit()
            until(lambda: tenants.has_handled(name, "a"))
            time.sleep(0.3)
    claims = [statement for statement in seen if "SKIP LOCKED" in statement]
    assert claims
    assert [each for each in claims if name not in each] == []


@A_NETWORK
@pytest.mark.parametrize("workers", ["threads"], indirect=True)
def test_a_verb_wakes_a_schema_that_it_may_have_written_to(
    tenants: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, engine), *_ = tenants.engines.items()
    ways: list[tuple[dict[Any, str], str | None]] = [({None: name, "other": "elsewhere"}, None)]
    if alias_of(engine) == "postgresql":
        ways.append(({}, f'SET LOCAL search_path = "{name}"'))
    monkeypatch.setattr(watcher, "BETWEEN_LOOKS", timedelta(hours=1))

    with tenants.running(poll=timedelta(hours=1), reap_every=None) as worker:
        until(lambda: worker.trouble is None)
        time.sleep(1)
        for number, (schemas, before) in enumerate(ways):
            with Session(engine.execution_options(schema_translate_map=schemas)) as session:
                if before is not None:
                    session.execute(text(before))
                session.add(Task(name=f"{number}"))
                session.commit()
            until(partial(tenants.has_handled, name, f"{number}"), 15)


@A_NETWORK
@pytest.mark.parametrize("what", ["gone", "locked"])
def test_a_table_of_one_schema_that_is_gone_or_locked_disturbs_no_wake_ups_of_the_others(
    tenants: Many, own_engine: Engine, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    bad, *others = tenants.plain
    table: Any = Task.__table__

    def warned() -> set[Any]:
        found = [each for each in caplog.records if "do not wake" in each.getMessage()]
        return {getattr(record, "database", None) for record in found}

    running = tenants.running(reap_every=None)
    with running as worker, own_engine.connect() as connection:
        until(lambda: worker.trouble is None)
        tenants.jobs(1)
        until(lambda: tenants.left() == 0)
        time.sleep(2)  # a claim that meets the lock would keep the watcher from looking
        connection.detach()  # so that its end gives the lock back
        if what == "gone":
            table.drop(tenants.plain[bad])
        elif alias_of(own_engine) == "postgresql":
            connection.exec_driver_sql(f'LOCK TABLE "{bad}".task')
        else:
            connection.exec_driver_sql(f"LOCK TABLES `{bad}`.task WRITE")
        until(lambda: warned() == {bad})
        for name in others:
            with tenants.plain[name].begin() as plain:
                plain.execute(insert(table).values(name="late"))  # no verb
        until(lambda: all(tenants.has_handled(name, "late") for name in others), 5)
        time.sleep(7)  # the connection would be given up after 5 seconds
        assert warned() == {bad}
        until(lambda: connections_beside(own_engine) <= 3 + 1 + 1 + 1, 5)  # and the test's


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("workers", ["threads"], indirect=True)
def test_a_schema_is_notified_by_a_channel_of_its_own(workers: Workers, tenants: Many) -> None:
    notified: set[str] = set()
    for engine in tenants.plain.values():
        wakeups.WakeBase.metadata.create_all(engine)
        with statements_seen(engine) as seen, Session(engine) as session:
            session.add(wakeups.Parcel(name="a"))
            session.commit()
        notified |= {text.removeprefix("NOTIFY ") for text in seen if "NOTIFY" in text}
    assert len(notified) == 4

    with statements_seen(Engine) as seen:
        queue = workers.queue(wakeups.Parcel, lambda parcel: None)
        with workers.running(queue, bind=tenants.engines):
            until(lambda: {text.removeprefix("LISTEN ") for text in seen} >= notified)


# A database that is not there


class Load:
    """Adds jobs to a database again and again, in a thread."""

    def __init__(self, many: Many, database: str) -> None:
        self._over = threading.Event()
        self._add = partial(many.add, database)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.05):
            self._add(f"load {number}")
            number += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_database_that_refuses_connections_at_the_start_is_tried_again(
    many: Many, caplog: pytest.LogCaptureFixture
) -> None:
    refuses = threading.Event()
    refuses.set()

    def connect(*_: Any) -> None:
        if refuses.is_set():
            raise RuntimeError("no secret in the vault")

    event.listen(many.engines["us"], "do_connect", connect)
    many.jobs(3)
    with many.running() as worker:
        until(lambda: many.count("eu") == many.count("asia") == 3)
        until(lambda: worker.trouble == "us: no secret in the vault")
        assert many.count("us") == 0
        refuses.clear()
        until(lambda: many.left() == 0)
        until(lambda: worker.trouble is None)
    assert "us: the worker cannot work here, and tries again: no secret in the vault" in caplog.text


@pytest.mark.parametrize("moment", ["before the start", "later"])
@ANYWHERE
def test_a_database_is_waited_for_longer_than_a_single_one(
    files: Many, clock: Clock, moment: str
) -> None:
    away, asked = threading.Event(), list[float]()
    refuse_while(away, files.engines["us"], asked, clock)
    if moment == "before the start":
        away.set()
    with files.running(owner="a", reap_every=None) as worker:
        until(lambda: worker.trouble is None or moment == "before the start")
        away.set()
        clock.jump_until(lambda: "us: database away: no route" in str(worker.trouble))
        files.add("us", "a")
        asked.clear()
        began = clock()
        clock.jump_until(lambda: asked and asked[-1] > began + 900)
        files.add("eu", "b")
        until(lambda: files.handled == [("eu", "b")])
        away.clear()
        until(lambda: ("us", "a") in files.handled)


def refuse_while(
    away: threading.Event, engine: Engine, asked: list[float], clock: Callable[[], float]
) -> None:
    """Let no connection be made or used while a database is away; note who asks."""

    def connect(dialect: Any, *_: Any) -> None:
        asked.append(clock())
        if away.is_set():
            raise dialect.loaded_dbapi.OperationalError("no route to host")

    def check_out(*_: Any) -> None:
        if away.is_set():
            raise DisconnectionError

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkout", check_out)


@A_NETWORK
@pytest.mark.parametrize("transactional", [False, True])
def test_others_go_on_while_a_database_is_silent_and_it_recovers(
    many: Many, caplog: pytest.LogCaptureFixture, transactional: bool
) -> None:
    with Proxy(many.plain["us"].url) as proxy:
        many.go_through(proxy)
        workers = many.workers
        if transactional:

            def handle(session: Session, task: Task) -> None:
                many.note(task)

            queue = workers.queue(Task, handle, transactional=True)
        else:
            queue = many.queue()
        with many.running(queue, deadline=SECOND, reap_every=None, poll=SECOND / 10) as worker:
            until(lambda: worker.trouble is None)
            with Load(many, "us"), Load(many, "eu"):
                until(lambda: many.count("us") > 5 and many.count("eu") > 5)
                proxy.go_silent()
                until(lambda: "us: database away" in (worker.trouble or ""))
                while_silent = many.count("us")
                before = many.count("eu")
                until(lambda: many.count("eu") > before + 20)
                assert "eu" not in worker.trouble
                assert many.count("us") <= while_silent + 1
                proxy.speak()
                until(lambda: many.count("us") > while_silent + 5)
            until(lambda: many.left() == 0)
            until(lambda: worker.trouble is None)
    assert re.search("us: .* has taken longer than", caplog.text)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.database for record in warned if hasattr(record, "database")} == {"us"}
    # A call whose transaction was cut off comes again.
    assert transactional or len(many.handled) == len({*many.handled})


@A_NETWORK
def test_a_transactional_handler_whose_database_falls_silent_gives_its_place_to_others(
    many: Many,
) -> None:
    silenced = threading.Event()
    with Proxy(many.plain["us"].url) as proxy:
        many.go_through(proxy)

        def handle(session: Session, task: Task) -> None:
            if task.name == "silencing" and not silenced.is_set():
                proxy.go_silent()
                silenced.set()
            many.note(task)

        queue = many.workers.queue(Task, handle, transactional=True)
        with many.running(queue, deadline=SECOND, reap_every=None):
            many.add("us", "silencing")
            until(silenced.is_set)
            many.add("eu", "a")
            until(lambda: many.statuses("eu") == {"a": "done"})
            assert many.statuses("us") == {"silencing": "claimed"}
            proxy.speak()
            until(lambda: many.statuses("us") == {"silencing": "done"})


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.parametrize("moment", ["before the start", "later"])
def test_others_go_on_at_once_while_a_database_is_read_only(
    many: Many, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(crew, "RESERVED", 300.0)  # nobody goes on because this is over
    refuses = threading.Event()

    def begin(connection: Any) -> None:
        word = "ONLY" if refuses.is_set() else "WRITE"
        number = int(refuses.is_set())
        postgresql = connection.dialect.name == "postgresql"
        text = f"SET TRANSACTION READ {word}" if postgresql else f"PRAGMA query_only = {number}"
        connection.exec_driver_sql(text)

    event.listen(many.engines["us"], "begin", begin)
    if moment == "before the start":
        refuses.set()
    with many.running(owner="a") as worker:
        if moment == "later":
            many.jobs(3)
            until(lambda: many.left() == 0)
            refuses.set()
            time.sleep(0.3)  # the claim that may be under way is over
        many.add("us", "late")
        until(lambda: "us: " in (worker.trouble or "") and "read" in worker.trouble)
        many.add("eu", "others")
        until(lambda: ("eu", "others") in many.handled)
        assert many.statuses("us")["late"] == "unclaimed"
        refuses.clear()
        until(lambda: many.statuses("us")["late"] == "done")
        until(lambda: worker.trouble is None)


def test_others_go_on_while_a_database_has_no_table(
    many: Many, caplog: pytest.LogCaptureFixture
) -> None:
    Base.metadata.drop_all(many.plain["us"])
    with many.running() as worker:
        many.add("eu", "a")
        until(lambda: many.handled == [("eu", "a")])
        until(lambda: "us: a turn failed: " in (worker.trouble or ""))
        until(lambda: re.search("us: a turn failed; .*task", caplog.text))
        Base.metadata.create_all(many.plain["us"])
        many.add("us", "a")
        until(lambda: ("us", "a") in many.handled)
        until(lambda: worker.trouble is None)


@A_NETWORK
def test_a_stop_waits_no_longer_than_the_grace_for_a_silent_database(many: Many) -> None:
    with Proxy(many.plain["us"].url) as proxy:
        many.go_through(proxy)
        begun, ends = threading.Event(), threading.Event()

        def handle(job: Any) -> None:
            if job_context().database == "us":
                begun.set()
                ends.wait(30)

        queue = many.queue(handle)
        with many.running(queue, grace=SECOND, concurrency=2) as worker:
            many.add("us", "a")
            until(begun.is_set)
            proxy.go_silent()
            ends.set()
            many.add("eu", "b")
            until(lambda: many.statuses("eu") == {"b": "done"})
            began = time.monotonic()
            worker.stop()
        assert time.monotonic() - began < 12
    assert many.statuses("us") == {"a": "claimed"}  # which a reap returns


# Tenants come and go


@pytest.fixture
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "ASK_EVERY", SECOND / 20)


@pytest.mark.usefixtures("asked_often")
def test_a_function_tells_which_databases_come_and_go(many: Many) -> None:
    told = {name: many.engines[name] for name in ("eu", "us")}
    begun, ends = threading.Event(), threading.Event()
    owners: list[str] = []

    def handle(job: Any) -> None:
        if job.name == "long":
            owners.append(job_context().owner)
            begun.set()
            ends.wait(30)

    def state() -> OwnerState:
        with Session(many.plain["us"]) as session:
            return owner_state(session, owners[0])

    def tell() -> dict[str, Engine]:
        return {**told}

    with many.running(many.queue(handle), bind=tell, concurrency=2) as worker:
        many.add("us", "long")
        until(begun.is_set)
        del told["us"]
        time.sleep(0.5)
        many.add("us", "left")
        told["asia"] = many.engines["asia"]
        many.add("asia", "a")
        until(lambda: ("asia", "a") in many.handled)
        assert many.statuses("us") == {"long": "claimed", "left": "unclaimed"}
        assert state() is OwnerState.ALIVE
        ends.set()
        until(lambda: many.statuses("us") == {"long": "done", "left": "unclaimed"})
        until(lambda: state() is OwnerState.DEAD)
        told["us"] = many.engines["us"]
        until(lambda: many.statuses("us") == {"long": "done", "left": "done"})
        until(lambda: worker.trouble is None)


@pytest.mark.usefixtures("asked_often")
@ANYWHERE
@pytest.mark.parametrize("wrong", [RuntimeError("no answer"), {"eu": 7}, None])
def test_the_databases_stay_while_a_function_fails_to_tell_them(
    files: Many, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    told: list[Any] = []

    def tell() -> Any:
        if not told:
            return files.engines
        if isinstance(told[0], Exception):
            raise told[0]
        return told[0]

    with files.running(bind=tell) as worker:
        until(lambda: worker.trouble is None)
        told.append(wrong)
        until(lambda: "the databases are not told, and stay" in caplog.text)
        expected = files.jobs(1)
        until(lambda: {*files.handled} == expected)


@pytest.mark.usefixtures("asked_often")
@ANYWHERE
def test_a_function_may_make_an_engine_for_each_call(files: Many) -> None:
    owners = set[str]()

    def tell() -> Any:
        return {name: files.workers.engine_for(it.url) for name, it in files.plain.items()}

    queue = files.queue(lambda job: owners.add(job_context().owner))
    with files.running(queue, bind=tell) as worker:
        until(lambda: worker.trouble is None)
        for _ in range(3):
            files.jobs(1)
            until(lambda: files.left() == 0)
            time.sleep(0.1)
    assert len(owners) == 3


@pytest.mark.usefixtures("asked_often")
@ANYWHERE
@pytest.mark.parametrize("at_first", [True, False])
def test_a_drain_ends_when_no_database_is_left(files: Many, at_first: bool) -> None:
    tried: list[Any] = []

    def fail(job: Any) -> Retry:
        tried.append(job)
        return Retry(60 * SECOND)  # for which the drain waits

    def tell() -> dict[str, Engine]:
        return files.engines if at_first and not tried else {}

    files.add("us", "a")
    files.workers.drain(files.workers.queue(Task, fail), bind=tell)

    assert len(tried) == at_first
    assert files.statuses("us") == {"a": "unclaimed"}


# What is refused


SHOP, OTHER = create_engine("sqlite:///shop.db"), create_engine("sqlite:///other.db")
AWAITED_SHOP = create_async_engine("sqlite+aiosqlite:///shop.db")
AWAITED_OTHER = create_async_engine("sqlite+aiosqlite:///other.db")

NO_ENGINE = "needs an .*Engine, or an? .*sessionmaker, not"

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (lambda a, b: {}, {}, "the mapping of databases is empty: name one, or give a function"),
    (lambda a, b: {"eu": a, 7: b}, {}, "the name of a database is a str, not empty, not 7"),
    (lambda a, b: {"": a, "us": b}, {}, "the name of a database is a str, not empty, not ''"),
    (
        lambda a, b: {"eu": a, "us": "sqlite://"},
        {},
        "needs an .*Engine, or an? .*sessionmaker, not",
    ),
    (lambda a, b: {"eu": a, "us": None}, {}, NO_ENGINE + " None"),
    (lambda a, b: [a, b], {}, NO_ENGINE),
    (lambda a, b: {"eu": a, "us": a}, {}, "'eu' and 'us' are one database: leave out one"),
    (
        lambda a, b: {"eu": a, "us": a.execution_options(isolation_level="SERIALIZABLE")},
        {},
        "'eu' and 'us' are one database: .*schema_translate_map",
    ),
    (
        lambda a, b: {"eu": a, "us": b},
        {"owner": Owner(SHOP)},
        "an Owner is of one database, .* leave out owner=",
    ),
]


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize(("given", "options", "message"), REFUSED)
def test_what_names_no_databases_is_refused_at_once(
    kind: Any, given: Any, options: dict[str, Any], message: str
) -> None:
    async def awaited(job: Any) -> None: ...

    def plain(job: Any) -> None: ...

    pair = (SHOP, OTHER) if kind is Worker else (AWAITED_SHOP, AWAITED_OTHER)
    handler = plain if kind is Worker else awaited
    with pytest.raises(ArgumentError, match=message):
        kind(given(*pair), JobQueue(Task), handler, **options)


def test_an_engine_of_the_other_kind_is_refused_in_a_mapping() -> None:
    wrong: Any = {"eu": AWAITED_SHOP}
    with pytest.raises(ArgumentError, match="use AsyncWorker"):
        Worker(wrong, JobQueue(Task), lambda job: None)


@ANYWHERE
@pytest.mark.parametrize("told", [7, None, {"eu": 7}, {7: 7}])
def test_a_function_that_tells_no_databases_ends_the_run_that_begins(
    workers: Workers, told: Any
) -> None:
    worker = workers.make(Task, bind=lambda: told)
    with pytest.raises(ArgumentError, match=r"a function .* returns a mapping|needs an|name of a"):
        workers.run(worker)


@ANYWHERE
def test_a_database_in_memory_is_refused_among_several(files: Many) -> None:
    memory = files.workers.engine_for(make_url("sqlite://"))
    with pytest.raises(ArgumentError, match=r"one connection, .* several databases") as refused:
        files.workers.run(files.workers.make(files.queue(), bind={**files.engines, "us": memory}))
    assert refused.value.__notes__ == ["The database is 'us'."]


@ANYWHERE
def test_a_check_of_several_databases_does_not_wait_for_one_that_is_away(
    files: Many, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    away = threading.Event()
    away.set()
    refuse_while(away, files.engines["us"], [], time.monotonic)
    worker = files.workers.make(files.queue(), bind=files.engines)

    def check(connection: Any) -> None:
        seen.append(connection.engine.url.database)

    result = worker.check_database(check)
    if files.workers.awaits:
        import asyncio

        result = asyncio.run(result)
    assert result is True
    assert len(seen) == 2
    assert "us: the database is away, and not checked" in caplog.text
