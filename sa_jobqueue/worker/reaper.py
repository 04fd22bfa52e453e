"""A worker reaps the claims of dead owners, and expired claims, at intervals."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from ..queue import JobQueue
from ..verbs.reap import Reaped
from .transactions import Refusals, Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")

#: The pause between two reaps of a worker, give or take a fifth.
REAP_EVERY = timedelta(seconds=10)

#: The pause before a reap that would reap our own claims.
SOON = timedelta(seconds=1)


class Reaper:
    """Reap in transactions of its own.

    Args:
        queues: their claims are reaped; each job gets the `ready` status of its queue.
        every: the pause between two reaps; None: never reap.
        max_runtime: as for :func:`sa_jobqueue.reap`.
        holds_lost_name: tells whether the worker holds jobs that it claimed under a name whose lock
            was lost: a reap would reap them, too.
    """

    def __init__(
        self,
        queues: Sequence[JobQueue[Any]],
        *,
        transactions: Transactions,
        every: timedelta | None,
        max_runtime: timedelta | None,
        holds_lost_name: Callable[[], bool],
    ) -> None:
        self._holds_lost_name = holds_lost_name
        self._queues = queues
        self._transactions = transactions
        self._every = every
        self._max_runtime = max_runtime
        self._next = 0.0
        self._refusals = Refusals(transactions, "a reap")

    @property
    def due_at(self) -> float:
        """When the next reap is due, by time.monotonic()."""
        return math.inf if self._every is None else self._next

    def run(self) -> None:
        """Reap claims, unless `every` is None, or the worker would reap its own claims."""
        if self._every is None:
            return
        reaped = Reaped()
        try:
            if self._holds_lost_name():
                self._next = time.monotonic() + SOON.total_seconds()
                return
            reaped = self._transactions.run_once(self._reap)
        except Exception as error:
            if not self._transactions.is_temporary(error):
                self._refusals.note(error)
            log.info("a reap failed; the next reap tries again: %s", cause_of(error))
        else:
            self._refusals.end()
        pause = 0.0 if reaped and reaped.more else self._every.total_seconds()
        self._next = time.monotonic() + pause * random.uniform(0.8, 1.2)

    def _reap(self, session: Session) -> Reaped:
        parts = [queue.reap(session, max_runtime=self._max_runtime) for queue in self._queues]
        if not any(parts):  # nothing was written, so there is nothing to commit
            session.rollback()
        jobs = tuple(job for part in parts for job in part.jobs)
        return Reaped(jobs, more=any(part.more for part in parts))
