"""A worker runs the schedules of its queues: it inserts their jobs when their ticks are due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ..queue import JobQueue
from ..schedules import Schedules
from ..schedules.declared import declared_for
from ..sessions.transactions import connected, run_in_transaction
from .chores import Tries
from .transactions import Transactions

#: The longest pause between two looks for due schedules, give or take a fifth.
LOOK_EVERY = timedelta(seconds=10)

#: Workers look for a tick at random within this time: the first runs it, the others find it done.
SPREAD = timedelta(milliseconds=50)

#: The pause after an error, and while another worker runs the due schedule.
SOON = timedelta(seconds=1)


class Scheduler:
    """Run schedules in transactions of its own, on the worker's engine.

    Args:
        queues: into which the jobs are inserted; what they declare is written to the table first.
        wake: called when jobs were inserted.
    """

    def __init__(
        self,
        schedules: Schedules,
        queues: Sequence[JobQueue[Any]],
        *,
        transactions: Transactions,
        wake: Callable[[], None],
    ) -> None:
        self._schedules = schedules
        self._queues = queues
        self._engine = transactions.engine
        self._wake = wake
        self._tries = Tries(transactions, "schedules")
        self._declared = not declared_for(queues)
        self._next = 0.0

    @property
    def due_at(self) -> float:
        """When the next look is due, by time.monotonic()."""
        return self._next

    def run(self) -> None:
        """Run the schedules that are due; an error is logged once, and never ends the worker."""
        self._next = time.monotonic() + SOON.total_seconds()
        if not self._declared:
            self._declared = self._tries.run("the declaration of schedules", self._declare)
        self._tries.run("a run of schedules", self._run)

    def _declare(self) -> None:
        run_in_transaction(
            self._engine, lambda session: self._schedules.declare(session, self._queues)
        )

    def _run(self) -> None:
        """Look by a plain read whether a schedule is due, before any lock is taken."""
        with connected(self._engine) as connection:
            wait = self._schedules.due_in(connection, self._queues)
        if wait is None or wait > timedelta(0):
            self._next = time.monotonic() + _pause(wait)
            return
        ran = run_in_transaction(
            self._engine, lambda session: self._schedules.run_due(session, self._queues)
        )
        if any(each.ticks for each in ran):
            self._wake()
        if ran:
            self._next = time.monotonic()  # there may be more


def _pause(wait: timedelta | None) -> float:
    """Return the seconds until the next look."""
    longest: float = LOOK_EVERY.total_seconds() * random.uniform(0.8, 1.2)
    if wait is None:
        return longest
    return min(longest, wait.total_seconds() + random.uniform(0, SPREAD.total_seconds()))
