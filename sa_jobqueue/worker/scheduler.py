"""A worker runs the schedules of its queues: it inserts their jobs when their ticks are due."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from ..schedules import Schedules
from ..schedules.declared import declared_for
from ..sessions.transactions import connected, run_in_transaction
from .tried_chore import SOON, TriedChore

#: The longest pause between two looks for due schedules, give or take a fifth.
LOOK_EVERY = timedelta(seconds=10)

#: Workers look for a tick at random within this time: the first runs it, the others find it done.
SPREAD = timedelta(milliseconds=50)


@dataclass(eq=False)
class Scheduler(TriedChore):
    """Run schedules in transactions of its own, on the worker's engine.

    What the queues of `lanes` declare is written to the table first.
    """

    schedules: Schedules

    without = "schedules"
    _is_declared = False

    def run(self) -> None:
        """Run the schedules that are due; an error is logged once, and never ends the worker."""
        # After an error, and while another worker runs the due schedule.
        self.due_at = time.monotonic() + SOON.total_seconds()
        if not self._is_declared:
            self._is_declared = self.attempt("the declaration of schedules", self._declare)
        self.attempt("a run of schedules", self._run)

    def _declare(self) -> None:
        if declared_for(self.queues):
            run_in_transaction(self.engine, partial(self.schedules.declare, queues=self.queues))

    def _run(self) -> None:
        """Look by a plain read whether a schedule is due, before any lock is taken."""
        with connected(self.engine) as connection:
            wait = self.schedules.due_in(connection, self.queues)
        if wait is None or wait > timedelta(0):
            pause = LOOK_EVERY.total_seconds() * random.uniform(0.8, 1.2)
            if wait is not None:
                pause = min(pause, (wait + SPREAD * random.random()).total_seconds())
            self.due_at = time.monotonic() + pause
            return
        run_due = partial(self.schedules.run_due, queues=self.queues)
        ran = run_in_transaction(self.engine, run_due)
        if ran:
            self.due_at = time.monotonic()  # there may be more
        if any(each.ticks for each in ran):
            self.loop.wake()  # the supervisor claims next, in this thread
