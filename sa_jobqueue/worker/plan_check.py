"""A worker examines its own queues now and then: claims may lose their index while it runs.

If an index is dropped, a table outgrows its statistics, or a transaction stays open for long,
each claim reads more rows. The worker has the table analyzed, and the log names the other causes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from ..dialects import database_of
from ..dialects.examination import Severity
from ..doctor import examine
from ..queue import JobQueue
from .events import tell_findings
from .transactions import Transactions
from .tries import Tries

log = logging.getLogger("sa_jobqueue.worker")

#: The pause between two examinations, give or take a fifth.
EXAMINE_EVERY = timedelta(hours=1)

#: The time until the first examination, so that workers started together do not examine at once.
FIRST = timedelta(minutes=2)

#: What may change while workers run.
EXAMINED = ("index", "statistics", "snapshot")

LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING}


class PlanCheck:
    """Have the doctor examine a worker's queues, without a claim and without a lock.

    Args:
        queues: each is examined in transactions of its own.
    """

    def __init__(self, queues: Sequence[JobQueue[Any]], *, transactions: Transactions) -> None:
        self._engine = transactions.engine
        self._queues = queues
        self._tries = Tries(transactions, "examinations")
        self._next = _after(FIRST)

    @property
    def due_at(self) -> float:
        """When the next examination is due, by time.monotonic()."""
        return self._next

    def run(self) -> None:
        """Examine each queue, and report the findings; an error never ends the worker."""
        for queue in self._queues:
            self._tries.run(f"the examination of {queue!r}", partial(self._examine, queue))
        self._next = _after(EXAMINE_EVERY)

    def _examine(self, queue: JobQueue[Any]) -> None:
        self._have_analyzed(queue)
        report = examine(self._engine, queue, checks=EXAMINED)
        # A missing privilege does not change while we run, and is no fault of the queue.
        findings = [finding for finding in report.findings if not finding.is_unchecked]
        for found in findings:
            level = LEVELS[found.severity]
            log.log(level, "%r, %s: %s; fix: %s", queue, found.check, found.message, found.fix)
        tell_findings(queue, [found.message for found in findings])

    def _have_analyzed(self, queue: JobQueue[Any]) -> None:
        """Analyze a table that has outgrown its statistics, if the database user may."""
        table = queue.mapping.table
        with Session(self._engine) as session, session.begin():
            connection = session.connection()
            database = database_of(connection)
            if rows := database.unanalyzed_rows(connection, table):
                database.told_of_rows(connection, table, rows)


def _after(pause: timedelta) -> float:
    return time.monotonic() + pause.total_seconds() * random.uniform(0.8, 1.2)
