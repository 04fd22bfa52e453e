"""Workers that serve several databases at once, each with its own server, faults and histories.

``python -m tests.chaos --database postgresql,mysql,mariadb``: each database is judged as in a run
of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, make_url

from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.events import Event
from sa_jobqueue.sessions.writer import Writer
from sa_jobqueue.worker import Worker, job_context
from tests.chaos.clock import under
from tests.chaos.fault import NOTHING, Fault
from tests.chaos.ground import ground
from tests.chaos.jobs import LOCK_WAIT, Calls, awaited, isolation, open_engine, queues_of, raising
from tests.chaos.players import LostConnections, Player, play
from tests.chaos.storm import Running, Storm
from tests.chaos.verdict import Verdict, judge
from tests.contract.asyncio.support import make_async_engine
from tests.evidence.ledger import Ledger
from tests.models import Task
from tests.processes import FORKSERVER, PRELOADED
from tests.running import ASYNC_DRIVERS

#: Each serves all databases; beside them each database has a producer.
WORKERS = ("worker", "worker", "async worker", "async worker")

#: A network that is cut would cut off all databases of a worker, each with its own namespace.
NOT_HERE = {"cut"}

#: Done to processes, so once for all databases.
OF_ALL = ("kill", "stop")


def run(
    databases: Sequence[str],
    given: argparse.Namespace,
    folder: Path,
    tell: Callable[[str], None],
) -> Verdict:
    """Run on a server of each kind, and judge each."""
    with ExitStack() as stack:
        parts: dict[str, Storm] = {}
        for database in databases:
            wanted = set(given.faults) - NOT_HERE
            made, url = stack.enter_context(ground(database, wanted))
            tell(f"{database} {made.version}, {given.seconds:g} s, seed {given.seed}")
            for why in made.left_out:
                tell(f"left out: {why}")
            own = folder / database
            own.mkdir()
            parts[database] = Storm(
                url, own, given, made.faults, through=made.through, clock=made.clock
            )
        whole = Storms(parts, folder, given)
        whole.run()
        verdicts = {database: judge(part) for database, part in parts.items()}
    counts = {f"faults done: {what}": count for what, count in sorted(whole.done.items())}
    for database, found in verdicts.items():
        counts |= {f"{database}: {name}": count for name, count in found.counts.items()}
    faults = [f"{database}: {one}" for database, found in verdicts.items() for one in found.faults]
    return Verdict(counts, faults)


class OnOne(Fault):
    """A fault of one of the databases."""

    def __init__(self, database: str, part: Storm, fault: Fault) -> None:
        self._database, self._part, self._fault = database, part, fault

    def happen(self, storm: Storm) -> str:
        what = self._fault.happen(self._part)
        of_all = what == NOTHING or self._fault.name in OF_ALL
        return what if of_all else f"{what}, {self._database}"

    def settle(self) -> None:
        self._fault.settle()


class Storms(Storm):
    """A run whose workers serve all of its parts.

    Args:
        parts: each database has its tables, faults and histories.
    """

    def __init__(self, parts: Mapping[str, Storm], folder: Path, given: argparse.Namespace) -> None:
        first = next(iter(parts.values()))
        faults = [
            OnOne(database, part, fault)
            for database, part in parts.items()
            for fault in part.faults
            if part is first or fault.name not in OF_ALL
            for _ in range(fault.cards)
        ]
        super().__init__(first.url, folder, given, faults)
        self._parts = parts
        self._producing: dict[str, Storm] = {}  # by the names of producers
        for part in parts.values():
            part.running, part.harmed, part.stuck = self.running, self.harmed, self.stuck
            part.ended, part.dice = self.ended, self.dice
            part.later, part.replace = self.later, self.replace  # type: ignore[method-assign]

    def run(self) -> None:
        """Play with faults, end the players, and drain each database."""
        drivers = [ASYNC_DRIVERS[part.url.get_backend_name()] for part in self._parts.values()]
        FORKSERVER.set_forkserver_preload([*PRELOADED, "tests.chaos.many", *drivers])
        for part in self._parts.values():
            part.create_tables()
        try:
            for kind in WORKERS:
                self._start(kind, far=False)
            for part in self._parts.values():
                self._start_producer(part)
            self._do_faults()
            self._end_players()
        finally:
            for running in self.running:
                running.process.kill()
        for part in self._parts.values():
            part._drain()

    def replace(self, ended: Running) -> None:
        """Start another player in the place of one that has ended."""
        self.running.remove(ended)
        producing = self._producing.get(ended.player.name)
        if producing is None:
            self._start(ended.player.kind, far=False)
        else:
            self._start_producer(producing)

    def _start(self, kind: str, *, far: bool) -> None:
        seed = self.dice.getrandbits(32)
        players = {
            on: self._player(kind, part, seed, through=True) for on, part in self._parts.items()
        }
        process = FORKSERVER.Process(target=play_on_all, args=(players,), daemon=True)
        self._begin(next(iter(players.values())), process)

    def _start_producer(self, part: Storm) -> None:
        player = self._player("producer", part, self.dice.getrandbits(32), through=False)
        self._producing[player.name] = part
        self._begin(player, FORKSERVER.Process(target=play, args=(player,), daemon=True))

    def _player(self, kind: str, part: Storm, seed: int, *, through: bool) -> Player:
        url = (part.through or part.url) if through else part.url
        player = Player(
            kind,
            f"{kind.replace(' ', '-')}-{len(self.players)}",
            part.url.render_as_string(hide_password=False),
            str(part.folder),
            seed,
            through=url.render_as_string(hide_password=False),
            rest=self.given.rest,
            clock=part.clock,
        )
        part.players.append(player)
        return player

    def _begin(self, player: Player, process: Any) -> None:
        process.start()
        self.players.append(player)
        self.running.append(Running(player, process))


class LedgerOfOne(Ledger):
    """Records what happens on one of several databases; what has no connection, on each."""

    def __init__(self, path: Path, engine: Engine) -> None:
        super().__init__(path)
        self._engine = engine

    def note(self, event: Event, writer: Writer | None) -> None:
        """Write an event of this database."""
        if writer is None or writer.connection.dialect is self._engine.dialect:
            super().note(event, writer)


def play_on_all(players: Mapping[str, Player]) -> None:
    """Run a worker on several databases, until SIGTERM or worse."""
    one = next(iter(players.values()))
    logging.basicConfig(filename=one.history.with_suffix(".log"), level=logging.INFO)
    {"worker": work, "async worker": work_async}[one.kind](players)


class Noting:
    """Notes the calls, the losses and the events of each database."""

    def __init__(self, players: Mapping[str, Player], engines: Mapping[str, Engine]) -> None:
        self.calls, self.losses, self._stack = {}, {}, ExitStack()
        for name, player in players.items():
            url = make_url(player.url)
            self.calls[name] = Calls.of(url, player.name, player.seed)
            self.losses[name] = LostConnections(engines[name], url, player)
            ledger = LedgerOfOne(player.history, engines[name])
            self._stack.enter_context(ledger.listen(Task))
            self._stack.enter_context(self.losses[name])

    def __enter__(self) -> Noting:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self) -> Calls:
        """Begin a job; return where its call is noted."""
        name = job_context().database
        assert name is not None
        self.losses[name].begin()
        return self.calls[name]


def work(players: Mapping[str, Player]) -> None:
    """Run a Worker."""
    engines = {
        name: under(open_engine(make_url(player.through or player.url)), player.clock)
        for name, player in players.items()
    }
    times = next(iter(players.values())).times
    with Noting(players, engines) as noting:

        def handler(task: Task) -> None:
            calls = noting.begin()
            time.sleep(calls.work_time())
            calls.note(task.id, task.attempts)

        queues = queues_of(handler, raising)
        worker = Worker(engines, queues, limit=6, concurrency=4, **times)
        with worker.stopping_on_signals():
            worker.run()


def work_async(players: Mapping[str, Player]) -> None:
    """Run an AsyncWorker."""
    engines = {}
    for name, player in players.items():
        way = make_url(player.through or player.url)
        driver = ASYNC_DRIVERS[way.get_backend_name()]
        engines[name] = make_async_engine(way, driver, lock_wait=LOCK_WAIT, **isolation(way))
        under(engines[name].sync_engine, player.clock)
    times = next(iter(players.values())).times

    async def run() -> None:
        with Noting(players, {name: e.sync_engine for name, e in engines.items()}) as noting:

            async def handler(task: Task) -> None:
                calls = noting.begin()
                await asyncio.sleep(calls.work_time())
                await asyncio.to_thread(calls.note, task.id, task.attempts)

            queues = queues_of(handler, awaited)
            worker = AsyncWorker(engines, queues, limit=8, concurrency=4, **times)
            with worker.stopping_on_signals():
                await worker.run()

    asyncio.run(run())
