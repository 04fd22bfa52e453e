"""Chores: what the supervisor of a worker does at intervals, beside its jobs.

It reaps the claims of dead owners, and expired claims. If the metadata has tables of control or of
schedules, it loads their modules, and does their chores, too. A chore may fail: that is logged, and
never ends the worker.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy.orm import Session

from ..dialects.connections import driver_errors
from ..errors import MissingTable
from ..model.keys import CONTROL, SCHEDULES, beside
from ..queue import JobQueue
from ..verbs.reap import Reaped, ReapReason
from .hands import Hands, Loop
from .lanes import Lane
from .transactions import Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")


class Chore(Protocol):
    """Work that is due now and then, in the supervisor's thread.

    Attributes:
        due_at: when it is due, by time.monotonic(); infinity: never.
    """

    @property
    def due_at(self) -> float: ...

    def run(self) -> None: ...


#: Loaded by the first call of every(): without it nobody declares schedules.
_DECLARED = "sa_jobqueue.schedules.declared"


@contextmanager
def chores_beside(
    loop: Loop[Any],
    *,
    hands: Hands[Any],
    transactions: Transactions,
    stuck: Callable[[], str | None],
    wake: Callable[[], None],
) -> Iterator[list[Chore]]:
    """Give a run the chores of the tables in the metadata of its queues.

    Args:
        stuck: returns what a call does that its deadline could not end; None: there is no such.
        wake: makes the worker claim at once, unless it has an interval.
    """
    lanes, chores = loop.turns.lanes, list[Chore]()
    with ExitStack() as stack:
        for tables, of_lanes in _lanes_beside(lanes, CONTROL):
            from .control import Control

            control: Control[Any] = Control(
                tables, of_lanes, loop, hands=hands, transactions=transactions, stuck=stuck
            )
            chores.append(stack.enter_context(control))
        for schedules, of_lanes in _lanes_beside(lanes, SCHEDULES):
            from .scheduler import Scheduler

            queues = [lane.queue for lane in of_lanes]
            chores.append(Scheduler(schedules, queues, transactions=transactions, wake=wake))
        registry = sys.modules.get(_DECLARED)
        for queue in [lane.queue for lane in lanes] if registry is not None else ():
            assert registry is not None
            if beside(queue.mapping, SCHEDULES) is None and registry.declared_for([queue]):
                log.warning(
                    "%r declares schedules, but no worker runs them: make Schedules(metadata) with "
                    "the metadata of its table",
                    queue,
                )
        yield chores


def _lanes_beside(lanes: Sequence[Lane[Any]], what: str) -> list[tuple[Any, list[Lane[Any]]]]:
    """Return the tables in the metadata of the lanes, each with its lanes; usually one."""
    found: dict[int, tuple[Any, list[Lane[Any]]]] = {}
    for lane in lanes:
        known = beside(lane.queue.mapping, what)
        if known is not None:
            found.setdefault(id(known), (known, []))[1].append(lane)
    return list(found.values())


class Tries:
    """Try the parts of a chore again and again; an error is logged when it comes, not each time.

    Missing tables are logged once for all parts.

    Args:
        chore: what the worker goes on without while its tables are missing, for the log.
    """

    def __init__(self, transactions: Transactions, chore: str) -> None:
        self._transactions = transactions
        self._chore = chore
        self._logged: set[str] = set()  # the parts whose error was logged
        self._lacking: set[str] = set()  # the parts that have not found their table

    def run(self, part: str, work: Callable[[], object]) -> bool:
        """Call `work`, which is named `part` in the log; tell whether it succeeded."""
        try:
            work()
        except MissingTable as error:  # it says the way out; a traceback adds nothing
            if not self._lacking:
                log.warning("the worker goes on without %s: %s", self._chore, error)
            self._lacking.add(part)
        except Exception as error:
            self._note(part, error)
        else:
            self._logged.discard(part)
            self._lacking.discard(part)
            return True
        return False

    def _note(self, part: str, error: Exception) -> None:
        if self._transactions.is_temporary(error):
            log.info("%s failed; the worker tries again: %s", part, cause_of(error))
        elif part not in self._logged:
            self._logged.add(part)
            refused = any(driver_errors(error))
            what = f"the database refuses {part}" if refused else f"{part} failed"
            log.error("%s; the worker tries again: %s", what, cause_of(error), exc_info=error)


#: The pause between two reaps of a worker, give or take a fifth.
REAP_EVERY = timedelta(seconds=10)

#: The pause before a reap that would reap our own claims.
SOON = timedelta(seconds=1)


class _OwnJobs(Exception):
    """A reap has met jobs that the worker has in hand: it is rolled back."""


class Reaper:
    """Reap in transactions of its own.

    Args:
        queues: their claims are reaped; each job gets the `ready` status of its queue.
        every: the pause between two reaps; None: never reap.
        max_runtime: as for :func:`sa_jobqueue.reap`.
        names_held: returns the owners of the jobs in hand: if our lock was cut, they look dead.
    """

    def __init__(
        self,
        queues: Sequence[JobQueue[Any]],
        *,
        transactions: Transactions,
        every: timedelta | None,
        max_runtime: timedelta | None,
        names_held: Callable[[], set[str]],
    ) -> None:
        self._names_held = names_held
        self._queues = queues
        self._transactions = transactions
        self._every = every
        self._max_runtime = max_runtime
        self._tries = Tries(transactions, "reaps")
        self._next = 0.0

    @property
    def due_at(self) -> float:
        """When the next reap is due, by time.monotonic()."""
        return math.inf if self._every is None else self._next

    def run(self) -> None:
        """Reap claims, unless `every` is None."""
        if self._every is None:
            return
        self._next = time.monotonic() + self._every.total_seconds() * random.uniform(0.8, 1.2)
        self._tries.run("a reap", self._run)

    def _run(self) -> None:
        try:
            reaped = self._transactions.run_once(self._reap)
        except _OwnJobs:
            self._next = time.monotonic() + SOON.total_seconds()
        else:
            if reaped.more:
                self._next = time.monotonic()

    def _reap(self, session: Session) -> Reaped:
        parts = [queue.reap(session, max_runtime=self._max_runtime) for queue in self._queues]
        if not any(parts):  # nothing was written, so there is nothing to commit
            session.rollback()
        jobs = tuple(job for part in parts for job in part.jobs)
        dead = {job.owner for job in jobs if job.reason is ReapReason.DEAD_OWNER}
        if dead & self._names_held():
            raise _OwnJobs
        return Reaped(jobs, more=any(part.more for part in parts))
