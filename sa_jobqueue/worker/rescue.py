"""A worker's look for claims to take back, now and then."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..queue import JobQueue
from ..sessions.transactions import run_in_transaction
from ..verbs.reap import Reaped
from .patience import Patience

log = logging.getLogger("sa_jobqueue.worker")

#: How often a worker looks for claims to take back, a fifth more or less.
REAP_EVERY = timedelta(seconds=10)


class Rescue:
    """Take back the claims of the dead, in transactions of its own.

    Args:
        queues: only theirs; each goes back to where its queue claims it from.
        every: the pause between two looks; None: it never looks.
        max_runtime: as for :func:`sa_jobqueue.reap`.
    """

    def __init__(
        self,
        queues: Sequence[JobQueue[Any]],
        *,
        patience: Patience,
        every: timedelta | None,
        max_runtime: timedelta | None,
    ) -> None:
        self._queues = queues
        self._patience = patience
        self._every = every
        self._max_runtime = max_runtime
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return self._every is not None and time.monotonic() >= self._next

    def look(self) -> None:
        """Take back claims, unless told to leave them."""
        if self._every is None:
            return
        reaped = Reaped()
        try:
            reaped = run_in_transaction(self._patience.engine, self._take_back)
        except DBAPIError as error:
            if not self._patience.passes(error):
                raise
            log.info("reaping failed, and is tried again at its next time: %s", error.orig)
        pause = 0.0 if reaped and reaped.more else self._every.total_seconds()
        self._next = time.monotonic() + pause * random.uniform(0.8, 1.2)

    def _take_back(self, session: Session) -> Reaped:
        parts = [queue.reap(session, max_runtime=self._max_runtime) for queue in self._queues]
        if not any(parts):  # nothing was written, so there is nothing to commit
            session.rollback()
        jobs = tuple(job for part in parts for job in part.jobs)
        return Reaped(jobs, more=any(part.more for part in parts))
