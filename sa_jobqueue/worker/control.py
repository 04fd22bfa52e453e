"""A worker's part in control: it looks what others want of it, and tells that it is there."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from ..control import ControlTables, read_control, register_worker, unregister_worker
from ..sessions.transactions import connected, run_in_transaction
from ..sessions.writer import writing
from .tried_chore import TriedChore

log = logging.getLogger("sa_jobqueue.worker")

#: The longest pause between two looks at pauses and stop requests.
LOOK_EVERY = timedelta(seconds=1)

#: The shortest pause between two writes of the worker's row, while its number of jobs changes; else
#: it is written once in a minute.
TELL_EVERY = timedelta(seconds=10)
TELL_AT_LEAST = timedelta(minutes=1)

#: The pause after an error, such as a table that is not there yet.
AGAIN = timedelta(seconds=10)

#: A part of control, for the log.
ROW = "the worker's row"


@dataclass(eq=False)
class Control(TriedChore):
    """A worker's part in the control tables of some of its lanes, from ``with`` to its end.

    It uses the worker's engine, not the application's sessions: they may be unable to tell where
    these tables are.

    Attributes:
        tables: those beside the queues of `lanes`.
        stuck: returns what a call does that its deadline could not end; None: there is no such.
    """

    tables: ControlTables
    stuck: Callable[[], str | None]

    without = "control"
    _paused = frozenset[str]()  # as it was last logged
    _row: tuple[Any, ...] = ()  # as it was last written: the name, jobs, stuck
    _told_at = -math.inf

    def __enter__(self) -> Control:
        """Register the worker; look at pauses before the first claim."""
        self._run(lambda: self.transactions.patiently(self._look))
        return self

    def __exit__(self, *_: object) -> None:
        if self._row:
            self.attempt(ROW, lambda: run_in_transaction(self.engine, self._remove_row))

    def run(self) -> None:
        """Look, and tell; an error is logged once, and the last look counts meanwhile."""
        self._run(self._look)

    def _run(self, look: Callable[[], None]) -> None:
        self.attempt(ROW, self._tell)
        looked = self.attempt("a look at pauses and stop requests", look)
        pause = LOOK_EVERY if looked else AGAIN
        self.due_at = time.monotonic() + pause.total_seconds() * random.uniform(0.8, 1.0)

    # -- what others want -----------------------------------------------

    def _look(self) -> None:
        name = self.loop.turns.owner_name.current
        owners = {name, *(str(job.fence.owner) for job in self.crew.claimed())}
        # A plain read: a transaction of a writer would take SQLite's only lock each time.
        with connected(self.engine) as connection:
            state = read_control(connection, self.queues, owner=owners, tables=self.tables)
        for name in sorted(state.paused - self._paused):
            log.info("%s is paused: this worker claims none of its jobs until it is resumed", name)
        for name in sorted(self._paused - state.paused):
            log.info("%s is resumed", name)
        self._paused = state.paused
        paused = [lane for lane in self.lanes if state.is_paused(lane.queue)]
        with self.crew.lock:
            self.crew.pause(self.loop, self.lanes, paused)
        for job in self.crew.claimed():
            job.asked_to_stop |= state.asks_to_stop(job.fence)

    # -- the worker's row -----------------------------------------------

    def _tell(self) -> None:
        """Write the row, if there is something new to tell, or it was not written for long."""
        jobs = sum(job.lane.whole in self.lanes for job in self.crew.claimed())
        row, now = (self.loop.turns.owner_name.current, jobs, self.stuck()), time.monotonic()
        pause = TELL_AT_LEAST if row == self._row else TELL_EVERY
        if now >= self._told_at + pause.total_seconds():
            self._told_at = now  # also if it fails: it is tried again after the same pause
            run_in_transaction(self.engine, partial(self._write_row, row))
            self._row = row

    def _write_row(self, row: tuple[str, int, str | None], session: Session) -> None:
        name, jobs, stuck = row
        with writing(session, self.queues[0].mapping):  # no gap locks on InnoDB
            if self._row and self._row[0] != name:  # our Owner has lost its lock
                self._remove_row(session)
            register_worker(session, name, self.queues, jobs=jobs, stuck=stuck, tables=self.tables)

    def _remove_row(self, session: Session) -> None:
        unregister_worker(session, self._row[0], tables=self.tables)
