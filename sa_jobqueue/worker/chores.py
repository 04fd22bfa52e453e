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

from ..model.keys import CONTROL, SCHEDULES, beside
from ..queue import JobQueue
from ..verbs.reap import Reaped, ReapReason
from .hands import Hands
from .lanes import Lane
from .owner import OwnerName
from .transactions import Refusals, Transactions, cause_of

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
    lanes: Sequence[Lane[Any]],
    *,
    hands: Hands[Any],
    transactions: Transactions,
    owner_name: OwnerName,
    stuck: Callable[[], str | None],
    wake: Callable[[], None],
) -> Iterator[list[Chore]]:
    """Give a run the chores of the tables in the metadata of its queues.

    Args:
        wake: makes the worker claim at once, unless it has an interval.
    """
    chores: list[Chore] = []
    with ExitStack() as stack:
        for tables, of_lanes in _lanes_beside(lanes, CONTROL):
            from .control import Control

            control: Control[Any] = Control(
                tables,
                of_lanes,
                hands=hands,
                transactions=transactions,
                owner_name=owner_name,
                stuck=stuck,
            )
            chores.append(stack.enter_context(control))
        for schedules, of_lanes in _lanes_beside(lanes, SCHEDULES):
            from .scheduler import Scheduler

            queues = [lane.queue for lane in of_lanes]
            chores.append(Scheduler(schedules, queues, transactions=transactions, wake=wake))
        _warn_of_missing_schedules(lanes)
        yield chores


def _lanes_beside(lanes: Sequence[Lane[Any]], what: str) -> list[tuple[Any, list[Lane[Any]]]]:
    """Return the tables in the metadata of the lanes, each with its lanes; usually one."""
    found: dict[int, tuple[Any, list[Lane[Any]]]] = {}
    for lane in lanes:
        known = beside(lane.queue.mapping, what)
        if known is not None:
            found.setdefault(id(known), (known, []))[1].append(lane)
    return list(found.values())


def _warn_of_missing_schedules(lanes: Sequence[Lane[Any]]) -> None:
    registry = sys.modules.get(_DECLARED)
    if registry is None:
        return
    for queue in [lane.queue for lane in lanes]:
        if beside(queue.mapping, SCHEDULES) is None and registry.declared_for([queue]):
            log.warning(
                "%r declares schedules, but no worker runs them: make Schedules(metadata) with the "
                "metadata of its table",
                queue,
            )


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
        self._next = 0.0
        self._refusals = Refusals(transactions, "a reap")

    @property
    def due_at(self) -> float:
        """When the next reap is due, by time.monotonic()."""
        return math.inf if self._every is None else self._next

    def run(self) -> None:
        """Reap claims, unless `every` is None."""
        if self._every is None:
            return
        reaped = Reaped()
        try:
            reaped = self._transactions.run_once(self._reap)
        except _OwnJobs:
            self._next = time.monotonic() + SOON.total_seconds()
            return
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
        dead = {job.owner for job in jobs if job.reason is ReapReason.DEAD_OWNER}
        if dead & self._names_held():
            raise _OwnJobs
        return Reaped(jobs, more=any(part.more for part in parts))
