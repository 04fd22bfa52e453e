"""A bulk load that is killed at random moments ends with all of its rows or none."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, LoadState, Log
from tests.bulk.models import Base, Item
from tests.servers.errors import NotHere
from tests.servers.keeping import Keeper, last_lines
from tests.servers.mariadb import MariaDB
from tests.servers.mysql import MySQL
from tests.servers.postgresql import PostgreSQL
from tests.servers.provider import NetworkProvider
from tests.servers.server import Server
from tests.support import SERVERS, make_engine

from .support import Victim

SEED = 20240517
FOREIGN = {-1, -2}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rows of a load, and how often it is killed."""

    folder: str
    log: str
    rows: int
    batch: int
    kills: int

    def new_log(self, engine: Engine) -> Log:
        return FileLog(self.folder) if self.log == "file" else DatabaseLog(engine)

    def load(self, engine: Engine) -> BulkLoad[Any]:
        rows = ({"id": number, "text": f"item {number}"} for number in range(self.rows))
        source = InsertSource(engine, Item, rows, total=self.rows, batch_size=self.batch)
        return BulkLoad(source, self.new_log(engine), wait=timedelta(seconds=30))


def call(url: str, plan: Plan, verb: str, told: Connection) -> None:
    """Report the begin, and call."""
    load = plan.load(make_engine(url))
    told.send("begins")
    getattr(load, verb)()


@dataclass
class Killer:
    """Call in another process, and kill it after a while."""

    plan: Plan
    random: random.Random
    killed: dict[str, int] = field(default_factory=dict)
    lasted: float = 0.0

    def call(self, engine: Engine, verb: str, *, within: float | None) -> bool:
        """Call; tell whether the call ended before it was killed."""
        with Victim(engine, call, self.plan, verb) as victim:
            assert victim.hears() == "begins"
            begun = time.monotonic()
            victim.process.join(None if within is None else self.random.uniform(0, within))
        through = victim.process.exitcode == 0
        self.lasted = time.monotonic() - begun
        if not through:
            assert victim.process.exitcode == -signal.SIGKILL
            self.killed[verb] = self.killed.get(verb, 0) + 1
        return through


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Item(id=number, text="foreign") for number in FOREIGN)
    yield engine
    engine.dispose()


def ids(engine: Engine) -> set[int]:
    with Session(engine) as session:
        return set(session.scalars(select(Item.id)))


@pytest.mark.parametrize("log", ["file", "database"])
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.timeout(1800)
def test_a_load_that_is_killed_anywhere_ends_with_all_rows_or_none(
    engine: Engine, log: str, tmp_path: Path, full: bool
) -> None:
    plan = Plan(
        folder=str(tmp_path / "log"),
        log=log,
        rows=200_000 if full else 900,
        batch=2_000 if full else 30,
        kills=50 if full else 3,
    )
    killer = Killer(plan, random.Random(f"{SEED} {engine.url.get_backend_name()} {log}"))
    everything = FOREIGN | set(range(plan.rows))
    assert killer.call(engine, "run", within=None)
    lasts = killer.lasted
    assert ids(engine) == everything
    ended = {"run": 0, "rollback": 0}

    while sum(killer.killed.values()) < plan.kills:
        verb = killer.random.choice(["run", "rollback"])
        state = plan.load(engine).state
        if state is LoadState.CANCELLED:
            assert ids(engine) == FOREIGN
            plan.load(engine).clean()
            verb = "run"
        elif state is LoadState.CLEANING:
            assert ids(engine) == everything
            verb = "rollback"
        ended[verb] += killer.call(engine, verb, within=lasts)

    for verb in killer.random.sample(["run", "rollback"], 2):
        load = plan.load(engine)
        if (load.state, verb) == (LoadState.CANCELLED, "run"):
            load.clean()
        getattr(plan.load(engine), verb)()
        assert ids(engine) == (everything if verb == "run" else FOREIGN)
    print(f"{engine.url.get_backend_name()}, {log}: killed {killer.killed}, through {ended}")  # noqa: T201


# -- a server that is restarted -----------------------------------------

PROVIDERS: dict[str, type[NetworkProvider]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MariaDB,
}


@dataclass
class Restarted:
    """A server of our own that is killed and started again."""

    provider: NetworkProvider
    server: Server

    def restart(self) -> None:
        keeper = self.server.keeper
        assert keeper is not None
        pid = next(
            path
            for path in (keeper.folder / "data" / "postmaster.pid", keeper.folder / "pid")
            if path.exists()
        )
        # Not by its keeper, which would remove its folder.
        binaries = self.provider.binaries()
        os.kill(int(pid.read_text().split()[0]), binaries.stop_signal)
        while keeper.running:
            time.sleep(0.05)
        keeper.end()
        port = self.server.url.port
        assert port is not None
        again = Keeper(binaries, keeper.folder, port=port)
        assert self.provider._answers(again, self.server.url), last_lines(keeper.folder)
        object.__setattr__(
            self.server, "keeper", again
        )  # the class is frozen, and this keeper takes over


@pytest.fixture
def restarted(db_alias: str) -> Iterator[Restarted]:
    provider = PROVIDERS[db_alias]()
    try:
        server = provider.start(provider.binaries(), origin="started")
    except NotHere as error:
        pytest.skip(f"no server of our own: {error}")
    yield Restarted(provider, server)
    server.stop()


@pytest.mark.only_full  # their servers take long to make
@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("log", ["file", "database"])
@pytest.mark.timeout(600)
def test_a_server_restarted_in_the_middle_of_a_load_does_no_harm(
    restarted: Restarted, log: str, tmp_path: Path
) -> None:
    """The server ends after three batches; then the load goes on, and is rolled back."""
    url = restarted.server.create_database(f"restarted_{log}")
    engine = durable_engine(url)
    Base.metadata.create_all(engine)
    rows = [{"id": number, "text": "item"} for number in range(1_000)]

    def new_load() -> BulkLoad[Any]:
        source = InsertSource(engine, Item, rows, batch_size=100)
        kept_in = FileLog(tmp_path / "log") if log == "file" else DatabaseLog(engine)
        return BulkLoad(source, kept_in)

    load = new_load()
    left = [3]

    def restart(progress: object) -> None:
        left[0] -= 1
        if not left[0]:
            restarted.restart()

    load.progress = restart
    with pytest.raises(DBAPIError):
        load.run()
    engine.dispose()
    assert left[0] <= 0

    new_load().run()

    assert ids(engine) == set(range(1_000))
    new_load().rollback()
    assert ids(engine) == set()
    engine.dispose()


def durable_engine(url: URL) -> Engine:
    """Connect with durable commits, which the tests' connections do not have by default."""
    if url.get_backend_name() == "postgresql":
        options = {"options": "-c synchronous_commit=on"}
        return create_engine(url, connect_args=options, poolclass=NullPool)
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))
    return engine
