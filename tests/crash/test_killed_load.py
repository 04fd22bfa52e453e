"""A bulk load that is killed at random moments ends with all of its rows or none."""

from __future__ import annotations

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
from sqlalchemy import URL, Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, LoadState, Log
from tests.bulk.models import Base, Item
from tests.processes import Victim
from tests.support import make_engine

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
        with Victim(engine.url, call, self.plan, verb) as victim:
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
