"""The processes of a run: workers, async workers and producers, until SIGTERM or worse."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Worker
from tests.chaos.clock import under
from tests.chaos.jobs import (
    DEADLINE,
    GROUPS_ONE_OF,
    LOCK_WAIT,
    PASSING,
    POLL,
    REAP_EVERY,
    Booking,
    Calls,
    awaited,
    group,
    isolation,
    open_engine,
    queues_of,
    raising,
)
from tests.chaos.link import enter
from tests.chaos.silence import HANG
from tests.contract.asyncio.support import make_async_engine
from tests.contract.worker.fault_injection import (
    AFTER_COMMIT,
    BEFORE_STATEMENT,
    KILLED,
    NOTHING,
    Fault,
    FaultInjection,
)
from tests.evidence.ledger import Ledger
from tests.models import Task
from tests.running import ASYNC_DRIVERS

#: Of so many statements and COMMITs of a worker one loses its connection.
LOSES_ONE_OF = 150

#: A statement of SQLite's that never ends, and rests most of the time.
HANGS = "a statement hangs"
FOR_EVER = "WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT rest() FROM n) SELECT count(*) FROM n"

#: Databases whose connections no other player ends.
ADMINISTRATIVE = {
    "postgresql": "postgres",
    "mysql": "information_schema",
    "mariadb": "information_schema",
}


@dataclass(frozen=True)
class Player:
    """What a process needs to know.

    Attributes:
        kind: worker, async worker or producer.
        folder: of the history files.
        through: the URL of the proxy that a worker connects through; None: it needs none.
        namespace: the network namespace that it lives in; None: that of the machine.
        loses: a worker loses connections of its own.
        rest: how many times longer than usual it waits between two polls, or two inserts.
        clock: the file of SQLite's clock; None: it is the machine's.
    """

    kind: str
    name: str
    url: str
    folder: str
    seed: int
    through: str | None = None
    namespace: str | None = None
    loses: bool = True
    rest: float = 1
    clock: str | None = None

    @property
    def times(self) -> dict[str, Any]:
        """How long a worker waits between two polls and two reaps, and for its database."""
        return {"poll": POLL * self.rest, "reap_every": REAP_EVERY, "deadline": DEADLINE}

    @property
    def history(self) -> Path:
        """The player's own ledger."""
        return Path(self.folder) / f"{self.name}.jsonl"

    @property
    def losses(self) -> Path:
        """Where each connection that the player itself has lost is noted."""
        return Path(self.folder) / f"{self.name}.losses"


def play(player: Player) -> None:
    """Play until told to stop; the log is beside the history."""
    logging.basicConfig(filename=player.history.with_suffix(".log"), level=logging.INFO)
    if player.namespace is not None:
        enter(player.namespace)
    with Ledger(player.history).listen(Task):
        {"worker": work, "async worker": work_async, "producer": produce}[player.kind](player)


def work(player: Player) -> None:
    """Run a Worker."""
    url = make_url(player.url)
    calls = Calls.of(url, player.name, player.seed)
    engine = under(open_engine(make_url(player.through or url)), player.clock)

    losses = LostConnections(engine, url, player)

    def handler(task: Task) -> None:
        losses.begin()
        time.sleep(calls.work_time())
        calls.note(task.id, task.attempts)

    queues = queues_of(handler, raising)
    worker = Worker(engine, queues, limit=3, concurrency=2, **player.times)
    with losses, worker.stopping_on_signals():
        worker.run()


def work_async(player: Player) -> None:
    """Run an AsyncWorker."""
    url = make_url(player.url)
    calls = Calls.of(url, player.name, player.seed)
    driver, way = ASYNC_DRIVERS[url.get_backend_name()], make_url(player.through or url)
    engine = make_async_engine(way, driver, lock_wait=LOCK_WAIT, **isolation(url))
    under(engine.sync_engine, player.clock)

    losses = LostConnections(engine.sync_engine, url, player)

    async def handler(task: Task) -> None:
        losses.begin()
        await asyncio.sleep(calls.work_time())
        await asyncio.to_thread(calls.note, task.id, task.attempts)

    async def run() -> None:
        queues = queues_of(handler, awaited)
        worker = AsyncWorker(engine, queues, limit=4, concurrency=2, **player.times)
        with losses, worker.stopping_on_signals():
            await worker.run()
        with suppress(TimeoutError):  # asyncpg waits for a farewell of a silent network
            await asyncio.wait_for(engine.dispose(), DEADLINE.total_seconds())

    asyncio.run(run())


def produce(player: Player) -> None:
    """Insert a few jobs at a time; those of a lost COMMIT are there or not."""
    dice, told = random.Random(player.seed), threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    url = make_url(player.url)
    engine = under(open_engine(url), player.clock)
    committed = 0
    with Session(engine) as session:
        while not told.wait(dice.uniform(0.04, 0.12) * player.rest):
            try:
                jobs = range(dice.randrange(1, 8))
                session.add_all(Task(name=player.name, priority=dice.randrange(3)) for _ in jobs)
                session.add(Booking())
                if committed % GROUPS_ONE_OF == 0:
                    group(session)
                session.commit()
                committed += 1
            except PASSING:
                session.rollback()
                engine.dispose()
                told.wait(0.1)


class LostConnections(FaultInjection):
    """From its first job on a worker loses its connection before and after statements and COMMITs.

    After a COMMIT means that its answer is lost. This happens to the first COMMIT, so that a short
    run has it, too. On SQLite, statements that are to hang never end. Each fault is noted in a
    file, which outlives the process.
    """

    def __init__(self, engine: Engine, url: URL, player: Player) -> None:
        # No other player ends the connection that ends ours: it is in another database.
        apart = ADMINISTRATIVE.get(url.get_backend_name(), url.database)
        super().__init__(
            engine,
            url.set(database=apart),
            seed=player.seed,
            wanted=1_000_000 if player.loses else 0,
            when_over=lambda: None,
            one_of=LOSES_ONE_OF,
        )
        self.kinds = [fault for fault in self.kinds if fault[0] == KILLED]
        if self._alias == "sqlite":
            event.listen(engine, "connect", _teach_to_rest)
        self._hang = Path(player.folder, HANG)
        self._first_commit_is_lost = player.loses
        self._noted = os.open(player.losses, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def _draw(self, *moments: str) -> Fault:
        if self._begun and self._first_commit_is_lost and AFTER_COMMIT in moments:
            self._first_commit_is_lost = False
            fault = (KILLED, AFTER_COMMIT)
        elif self._begun and BEFORE_STATEMENT in moments and taken(self._hang):
            fault = (HANGS, BEFORE_STATEMENT)
        else:
            fault = super()._draw(*moments)
        if fault != NOTHING:
            os.write(self._noted, f"{fault[0]} {fault[1]}\n".encode())
        return fault

    def _happen(self, what: str, connection: Any, cursor: Any) -> None:
        if what == HANGS:
            cursor.execute(FOR_EVER)
        super()._happen(what, connection, cursor)

    def _kill(self, connection: Any) -> None:
        for _ in range(2):  # a crash of the server ends the connection that ends ours, too
            with suppress(DBAPIError):
                super()._kill(connection)
                return


def _teach_to_rest(connection: Any, record: object) -> None:
    connection.create_function("rest", 0, partial(time.sleep, 0.05))


def taken(file: Path) -> bool:
    """Remove a file; tell whether it was there: one process has it."""
    with suppress(FileNotFoundError):
        file.unlink()
        return True
    return False
