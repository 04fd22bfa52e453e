"""A run: players on one table, faults chosen by a seed, and a sound worker that drains the rest."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sqlalchemy import URL, select
from sqlalchemy.orm import Session

from sa_jobqueue.worker import Worker
from tests.chaos.clock import under
from tests.chaos.fault import NOTHING, Fault
from tests.chaos.jobs import (
    POLL,
    REAP_EVERY,
    Booking,
    Calls,
    Part,
    Report,
    create_tables,
    open_engine,
    queues_of,
)
from tests.chaos.players import Player, play
from tests.evidence.ledger import Ledger
from tests.models import Task
from tests.processes import FORKSERVER, PRELOADED
from tests.running import ASYNC_DRIVERS
from tests.support import until

PLAYERS = ("worker", "worker", "async worker", "async worker", "producer", "producer")

#: Seconds that a player may take to end when it is told to.
PATIENCE = 60


@dataclass
class Running:
    """A player's process."""

    player: Player
    process: ForkServerProcess
    stopped: bool = False

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        self.stopped = number == signal.SIGSTOP
        with suppress(ProcessLookupError):  # it has ended by itself, and its exit code tells
            os.kill(self.process.pid, number)


@dataclass
class Storm:
    """A run of some seconds.

    Attributes:
        given: its seconds, its seed and its pauses, as on the command line.
        faults: what is done, each as often as it has cards.
        far: the URL and the network namespace of every second player; None: they are not apart.
        through: the URL of a proxy for the workers that are not far; None: there is none.
        clock: the file of SQLite's clock; None: it is the machine's.
        done: how often each fault was done.
        harmed: the names of the players that were killed or stopped.
        stuck: the workers that ended since a call to the database could not be freed.
        ended: the other players that ended by themselves or not at all, with their exit codes.
        players: all that have ever played.
        running: those that play.
        clock_steps: the database's clock may have been stepped.
        loses_connections: workers lose connections of their own.
    """

    url: URL
    folder: Path
    given: argparse.Namespace
    faults: Sequence[Fault]
    far: tuple[URL, str] | None = None
    through: URL | None = None
    clock: str | None = None
    done: Counter[str] = field(default_factory=Counter)
    harmed: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    ended: dict[str, int | None] = field(default_factory=dict)
    players: list[Player] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    clock_steps: bool = False
    loses_connections: bool = True

    def __post_init__(self) -> None:
        self.dice = random.Random(self.given.seed)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._deck: list[Fault] = []
        self._postponed: list[Fault] = []
        self._begun = time.monotonic()

    @property
    def histories(self) -> list[Path]:
        """The ledgers of all players, and of the worker that drained."""
        return sorted(self.folder.glob("*.jsonl"))

    def run(self) -> None:
        """Play with faults, end the players, and drain the table."""
        driver = ASYNC_DRIVERS[self.url.get_backend_name()]
        FORKSERVER.set_forkserver_preload([*PRELOADED, "tests.chaos.players", driver])
        self.create_tables()
        try:
            for number, kind in enumerate(PLAYERS):
                self._start(kind, far=number % 2 == 1)
            self._do_faults()
            self._end_players()
        finally:
            for running in self.running:
                running.process.kill()
        self._drain()

    def create_tables(self) -> None:
        """Create the tables, unless they are there."""
        engine = open_engine(self.url)
        create_tables(engine)
        engine.dispose()

    # -- faults ---------------------------------------------------------

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something after some seconds, or at the end of the run."""
        self._later.append((time.monotonic() + seconds, do))

    def _do_faults(self) -> None:
        end = time.monotonic() + self.given.seconds
        while (now := time.monotonic()) < end:
            time.sleep(self.dice.uniform(0.5, 1.5) * self.given.every)
            self._do_what_is_due(now)
            self._note_ended()
            self._do(self._draw())
        self._do_what_is_due(float("inf"))
        for fault in self.faults:
            fault.settle()
        del self.done[NOTHING]

    def _draw(self) -> Fault:
        """Draw from a shuffled deck, so that in a short run each fault is done, too."""
        if not self._deck:
            self._deck = [fault for fault in self.faults for _ in range(fault.cards)]
            self.dice.shuffle(self._deck)
            self._deck += self._postponed
            self._postponed.clear()
        return self._deck.pop()

    def _do(self, fault: Fault) -> None:
        begin = time.monotonic()
        what = fault.happen(self)
        self.done[what] += 1
        if what == NOTHING and fault not in self._postponed:
            self._postponed.append(fault)
        with (self.folder / "faults.log").open("a") as log:
            log.write(f"{begin - self._begun:8.2f} {time.monotonic() - begin:6.2f} {what}\n")

    def _do_what_is_due(self, now: float) -> None:
        due = [do for when, do in self._later if when <= now]
        self._later = [(when, do) for when, do in self._later if when > now]
        for do in due:
            do()

    # -- players --------------------------------------------------------

    def replace(self, ended: Running) -> None:
        """Start another player in the place of one that has ended."""
        self.running.remove(ended)
        self._start(ended.player.kind, far=ended.player.namespace is not None)

    def _start(self, kind: str, *, far: bool) -> None:
        name = f"{kind.replace(' ', '-')}-{len(self.players)}"
        url, namespace = self._way_in(far=far)
        through = None if namespace or kind == "producer" else self.through
        player = Player(
            kind,
            name,
            url.render_as_string(hide_password=False),
            str(self.folder),
            self.dice.getrandbits(32),
            through=through and through.render_as_string(hide_password=False),
            namespace=namespace,
            loses=self.loses_connections,
            rest=self.given.rest,
            clock=self.clock,
        )
        process = FORKSERVER.Process(target=play, args=(player,), daemon=True)
        process.start()
        self.players.append(player)
        self.running.append(Running(player, process))

    def _way_in(self, *, far: bool) -> tuple[URL, str | None]:
        """Return the next player's URL, and its network namespace."""
        return self.far if far and self.far else (self.url, None)

    def _note_ended(self) -> None:
        """Replace players that ended by themselves: this is a fault of its own."""
        for running in self.running[:]:
            if running.process.exitcode is not None:
                self._note_end(running)
                self.replace(running)

    def _note_end(self, running: Running) -> None:
        """Note a player that ended by itself; a call that cannot be freed ends a worker."""
        if running.process.exitcode == os.EX_SOFTWARE:
            self.stuck.add(running.player.name)
        else:
            self.ended[running.player.name] = running.process.exitcode

    def _end_players(self) -> None:
        """Tell all players to end, and wait."""
        for running in self.running:
            running.signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        for running in self.running:
            running.process.join(max(0, deadline - time.monotonic()))
            # By SIGTERM: it was told before it had begun.
            if running.process.exitcode not in (0, -signal.SIGTERM):
                self._note_end(running)

    def _drain(self) -> None:
        """Have a sound worker finish all jobs, also those that wait for a lease."""
        engine = under(open_engine(self.url), self.clock)
        calls = Calls.of(self.url, "last", self.given.seed, raises=False)
        worker = Worker(
            engine,
            queues_of(lambda task: calls.note(task.id, task.attempts), lambda work: work),
            limit=20,
            poll=POLL,
            reap_every=REAP_EVERY,
            drain=True,
        )

        def drained() -> bool:
            worker.run()
            with Session(engine) as session:
                return all(
                    session.scalars(select(job.id).where(job.status != "done").limit(1)).first()
                    is None
                    for job in (Task, Booking, Part, Report)
                )

        with Ledger(self.folder / "last.jsonl").listen(Task):
            until(drained, PATIENCE)
        engine.dispose()
        calls.engine.dispose()
