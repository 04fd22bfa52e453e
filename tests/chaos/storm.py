"""A run: players on one table, faults chosen by a seed, and a sound worker that drains the rest."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sqlalchemy import URL, NullPool, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.evidence import Ledger
from sa_jobqueue.worker import Worker
from tests.chaos.jobs import LEASE, POLL, REAP_EVERY, Calls, create_tables, isolation, new_queue
from tests.chaos.players import Player, play
from tests.contract.worker.fault_injection import ENDING
from tests.models import Task
from tests.processes import FORKSERVER
from tests.support import cut_connections, make_engine, until

PLAYERS = ("worker", "worker", "async worker", "async worker", "producer", "producer")

#: The fault that could not be done, since there was nobody to do it to.
NOTHING = "nothing"

#: Seconds that a player may take to end when it is told to.
PATIENCE = 60

#: Seconds that a stopped player stands still: beyond its lease.
STANDS_STILL = LEASE.total_seconds() * 1.5

#: The connections to a database, but our own.
LISTED = {
    "postgresql": "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist "
    "WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
LISTED["mariadb"] = LISTED["mysql"]


@dataclass
class Running:
    """A player's process.

    Attributes:
        stands_until: when it is continued, by the monotonic clock; None: it runs.
    """

    player: Player
    process: ForkServerProcess
    stands_until: float | None = None

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # it has ended by itself, and its exit code tells
            os.kill(self.process.pid, number)


@dataclass
class Storm:
    """A run of some seconds.

    Attributes:
        done: how often each fault was done.
        harmed: the names of the players that were killed or stopped.
        ended: the players that ended by themselves or not at all, with their exit codes.
        players: all that have ever played.
    """

    url: URL
    folder: Path
    seconds: float
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    harmed: set[str] = field(default_factory=set)
    ended: dict[str, int | None] = field(default_factory=dict)
    players: list[Player] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._running: list[Running] = []
        self._alias = self.url.get_backend_name()
        self._faults: list[Callable[[], str]] = [self._kill, self._kill, self._stop, self._stop]
        if self._alias in ENDING:
            self._faults += [self._end_connection, self._end_connection, self._end_connections]

    @property
    def histories(self) -> list[Path]:
        """The ledgers of all players, and of the worker that drained."""
        return sorted(self.folder.glob("*.jsonl"))

    def run(self) -> None:
        """Play with faults, end the players, and drain the table."""
        engine = make_engine(self.url)
        create_tables(engine)
        engine.dispose()
        try:
            for kind in PLAYERS:
                self._start(kind)
            self._do_faults()
            self._end_players()
        finally:
            for running in self._running:
                running.process.kill()
        self._drain()

    # -- faults ---------------------------------------------------------

    def _do_faults(self) -> None:
        end = time.monotonic() + self.seconds
        while (now := time.monotonic()) < end:
            time.sleep(self._dice.uniform(0.2, 0.6))
            self._continue(now)
            self._note_ended()
            self.done[self._dice.choice(self._faults)()] += 1
        del self.done[NOTHING]

    def _kill(self) -> str:
        """Kill a player, stopped or not, and start another in its place."""
        victim = self._dice.choice(self._running)
        self.harmed.add(victim.player.name)
        victim.process.kill()
        victim.process.join()
        self._running.remove(victim)
        self._start(victim.player.kind)
        return f"SIGKILL, {victim.player.kind}"

    def _stop(self) -> str:
        """Let a player stand still until its lease is over, unless most of them do."""
        moving = [running for running in self._running if running.stands_until is None]
        if len(moving) < 3:
            return NOTHING
        victim = self._dice.choice(moving)
        self.harmed.add(victim.player.name)
        victim.signal(signal.SIGSTOP)
        victim.stands_until = time.monotonic() + STANDS_STILL
        return f"SIGSTOP, {victim.player.kind}"

    def _end_connection(self) -> str:
        engine = make_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            numbers = sorted(connection.exec_driver_sql(LISTED[self._alias]).scalars())
            if not numbers:
                return NOTHING
            number = self._dice.choice(numbers)
            try:
                connection.exec_driver_sql(ENDING[self._alias][0].format(number))
            except DBAPIError:  # it has ended meanwhile
                return NOTHING
        return "a connection ended by the server"

    def _end_connections(self) -> str:
        with suppress(DBAPIError):  # one has ended meanwhile
            cut_connections(self.url, self._alias)
        return "all connections ended by the server"

    # -- players --------------------------------------------------------

    def _start(self, kind: str) -> None:
        name = f"{kind.replace(' ', '-')}-{len(self.players)}"
        url = self.url.render_as_string(hide_password=False)
        player = Player(kind, name, url, str(self.folder), self._dice.getrandbits(32))
        process = FORKSERVER.Process(target=play, args=(player,), daemon=True)
        process.start()
        self.players.append(player)
        self._running.append(Running(player, process))

    def _continue(self, now: float) -> None:
        for running in self._running:
            if running.stands_until is not None and running.stands_until <= now:
                running.signal(signal.SIGCONT)
                running.stands_until = None

    def _note_ended(self) -> None:
        """Replace players that ended by themselves: this is a fault of its own."""
        for running in self._running[:]:
            if running.process.exitcode is not None:
                self.ended[running.player.name] = running.process.exitcode
                self._running.remove(running)
                self._start(running.player.kind)

    def _end_players(self) -> None:
        """Tell all players to end, and wait."""
        self._continue(float("inf"))
        for running in self._running:
            running.signal(signal.SIGTERM)
        for running in self._running:
            running.process.join(PATIENCE)
            # By SIGTERM: it was told before it had begun.
            if running.process.exitcode not in (0, -signal.SIGTERM):
                self.ended[running.player.name] = running.process.exitcode

    def _drain(self) -> None:
        """Have a sound worker finish all jobs, also those that wait for a lease."""
        engine, calls = (
            make_engine(self.url, **isolation(self.url)),
            Calls.of(self.url, "last", self.seed, raises=False),
        )
        worker = Worker(
            engine,
            new_queue(),
            lambda task: calls.note(task.id, task.attempts),
            limit=20,
            poll=POLL,
            reap_every=REAP_EVERY,
            drain=True,
        )

        def drained() -> bool:
            worker.run()
            with Session(engine) as session:
                left = session.scalars(select(Task.id).where(Task.status != "done").limit(1))
                return left.first() is None

        with Ledger(self.folder / "last.jsonl").listen(Task):
            until(drained, PATIENCE)
        engine.dispose()
        calls.engine.dispose()
