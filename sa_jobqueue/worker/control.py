"""A worker's part in control: it looks what others want of it, and tells that it is there."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from ..control import ControlTables, read_control, register_worker, unregister_worker
from ..sessions.transactions import connected, run_in_transaction
from ..sessions.writer import writing
from .chores import Tries
from .hands import Hands, Loop
from .lanes import Lane
from .transactions import Transactions

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


#: The longest pause between two looks at pauses and stop requests.
LOOK_EVERY = timedelta(seconds=1)

#: The pause between two writes of the worker's row, while its number of jobs changes; else it is
#: written once in a minute.
TELL_EVERY = timedelta(seconds=10)
TELL_AT_LEAST = timedelta(minutes=1)

#: The pause after an error, such as a table that is not there yet.
AGAIN = timedelta(seconds=10)

#: The parts of control, for the log.
LOOK = "a look at pauses and stop requests"
ROW = "the worker's row"


class Control(Generic[T]):
    """A worker's part in the control tables of some of its lanes, from ``with`` to its end.

    It uses the worker's engine, not the application's sessions: they may be unable to tell where
    these tables are.

    Args:
        tables: those beside the queues of `lanes`.
        stuck: returns what a call does that its deadline could not end; None: there is no such.
    """

    def __init__(
        self,
        tables: ControlTables,
        lanes: Sequence[Lane[T]],
        loop: Loop[T],
        *,
        hands: Hands[T],
        transactions: Transactions,
        stuck: Callable[[], str | None],
    ) -> None:
        self._stuck = stuck
        self._loop = loop
        self._tables = tables
        self._lanes = lanes
        self._queues = [lane.queue for lane in lanes]
        self._hands = hands
        self._transactions = transactions
        self._engine = transactions.engine
        self._owner_name = loop.owner_name
        self._tries = Tries(transactions, "control")
        self._next_look = self._next_row = 0.0
        self._paused: frozenset[str] = frozenset()  # as it was last logged
        self._name: str | None = None  # as it stands in the row
        self._told: tuple[int, str | None] = (0, None)  # jobs and stuck, likewise
        self._told_at = 0.0

    def __enter__(self) -> Control[T]:
        """Register the worker; look at pauses before the first claim."""
        self._tell_now()
        self._look_now(lambda: self._transactions.patiently(self._look))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._name is not None:
            self._tries.run(ROW, self._remove_row)

    @property
    def due_at(self) -> float:
        """When the next look, or the next write of the row, is due, by time.monotonic()."""
        return min(self._next_look, self._next_row)

    def run(self) -> None:
        """Do what is due; an error is logged once, and the last look counts meanwhile."""
        now = time.monotonic()
        if self._next_look <= now:
            self._look_now(self._look)
        if self._next_row <= now:
            self._tell_now()

    # -- what others want -----------------------------------------------

    def _look_now(self, look: Callable[[], None]) -> None:
        pause = LOOK_EVERY if self._tries.run(LOOK, look) else AGAIN
        self._next_look = time.monotonic() + pause.total_seconds() * random.uniform(0.8, 1.0)

    def _look(self) -> None:
        owners = self._owners()
        # A plain read: a transaction of a writer would take SQLite's only lock each time.
        with connected(self._engine) as connection:
            state = read_control(connection, self._queues, owner=owners, tables=self._tables)
        self._log_pauses(state.paused)
        with self._hands as hands:
            paused = [lane for lane in self._lanes if state.is_paused(lane.queue)]
            hands.pause(self._loop, self._lanes, paused)
            for in_hand in hands.all if state.stops else ():
                if state.asks_to_stop(in_hand.fence):
                    in_hand.asked_to_stop = True

    def _log_pauses(self, paused: frozenset[str]) -> None:
        for name in sorted(paused - self._paused):
            log.info("%s is paused: this worker claims none of its jobs until it is resumed", name)
        for name in sorted(self._paused - paused):
            log.info("%s is resumed", name)
        self._paused = paused

    def _owners(self) -> set[str]:
        """Return our name, and those of the jobs in hand, which are older if a lock was lost."""
        current = self._owner_name.current  # may take a new lock, which takes its time
        with self._hands as hands:
            return {current, *(str(in_hand.fence.owner) for in_hand in hands.all)}

    # -- the worker's row -----------------------------------------------

    def _tell_now(self) -> None:
        pause = TELL_EVERY if self._tries.run(ROW, self._tell) else AGAIN
        self._next_row = time.monotonic() + pause.total_seconds() * random.uniform(0.8, 1.2)

    def _tell(self) -> None:
        """Write the row, if there is something new to tell, or it was not written for long."""
        name, news = self._owner_name.current, (self._jobs_in_hand, self._stuck())
        age = time.monotonic() - self._told_at
        if (name, news) != (self._name, self._told) or age >= TELL_AT_LEAST.total_seconds():
            self._write_row(name, *news)

    def _write_row(self, name: str, jobs: int, stuck: str | None) -> None:
        def write(session: Session) -> None:
            if self._name not in (None, name):  # our Owner has lost its lock, and has a new name
                unregister_worker(session, str(self._name), tables=self._tables)
            register_worker(
                session, name, self._queues, jobs=jobs, stuck=stuck, tables=self._tables
            )

        self._run(write)
        self._name, self._told, self._told_at = name, (jobs, stuck), time.monotonic()

    def _remove_row(self) -> None:
        name = str(self._name)
        self._run(lambda session: unregister_worker(session, name, tables=self._tables))

    def _run(self, write: Callable[[Session], None]) -> None:
        def run(session: Session) -> None:
            with writing(session, self._queues[0].mapping):  # no gap locks on InnoDB
                write(session)

        run_in_transaction(self._engine, run)

    @property
    def _jobs_in_hand(self) -> int:
        with self._hands as hands:
            return sum(in_hand.lane in self._lanes for in_hand in hands.all)
