"""Chores: what a worker does at intervals, beside its jobs.

The supervisor reaps the claims of dead owners, and expired claims. If the metadata has tables of
control or of schedules, it loads their modules, and does their chores, too. A chore may fail: that
is logged, and never ends the worker.

The job of a long handler, and a job that waits behind others, keep their claims beyond the lease.
Three times in a lease, a thread renews the claims in hand: the heartbeat. It opens a new connection
for each renewal, and renews by fences: the entities belong to the handlers. An AsyncWorker's
heartbeat is a task.

A renewal does not wait for locked rows: it would hold up all other claims. A transactional handler
or the application may lock a row for long. Nobody reaps a claim whose row is locked: the lock
replaces the lease. The claim is renewed when the row is free again.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, MetaData
from sqlalchemy.orm import Session

from ..dialects import is_refusal, is_transient
from ..fence.token import Fence
from ..model.keys import CONTROL, SCHEDULES
from ..sessions.transactions import connected_outside_pool, run_in_transaction
from ..verbs.reap import ReapReason
from .crew import Crew, Loop
from .in_hand import Ended, InHand, lock_free_rows, log_lost
from .lanes import NOT_YET, Lane, claims_lost_by
from .transactions import cause_of
from .tried_chore import SOON, TriedChore

log = logging.getLogger("sa_jobqueue.worker")

#: The pause between two reaps of a worker, give or take a fifth.
REAP_EVERY = timedelta(seconds=10)

#: Renewals in one lease: two of them may fail.
BEATS_PER_LEASE = 3

#: How long a finish waits for a renewal that is under way, in seconds: a renewal that hangs must
#: not block the finish for ever.
LONGEST_RENEWAL = 30.0


def add_chores_beside(
    stack: ExitStack, crew: Crew, loop: Loop, stuck: Callable[[], str | None]
) -> None:
    """Give a run the chores of the tables in the metadata of its queues.

    Args:
        stack: ends the chores with the run.
        stuck: returns what a call does that its deadline could not end; None: there is no such.
    """
    by_metadata: dict[MetaData, list[Lane[Any]]] = {}
    for lane in loop.turns.lanes:
        by_metadata.setdefault(lane.queue.mapping.table.metadata, []).append(lane)
    # Loaded by the first call of every(): without it nobody declares schedules.
    declared = sys.modules.get("sa_jobqueue.schedules.declared")
    for metadata, lanes in by_metadata.items():
        if (tables := metadata.info.get(CONTROL)) is not None:
            from .control import Control

            crew.chores.append(stack.enter_context(Control(crew, loop, lanes, tables, stuck)))
        if (schedules := metadata.info.get(SCHEDULES)) is not None:
            from .scheduler import Scheduler

            crew.chores.append(Scheduler(crew, loop, lanes, schedules))
            continue
        for lane in lanes:
            if declared and declared.declared_for([lane.queue]):
                log.warning(
                    "%r declares schedules, but no worker runs them: make Schedules(metadata) with "
                    "the metadata of its table",
                    lane.queue,
                )


@dataclass(eq=False)
class Reaper(TriedChore):
    """Reap in transactions of its own; each job gets the `ready` status of its queue.

    Attributes:
        every: the pause between two reaps; None: never reap.
        max_runtime: as for :func:`sa_jobqueue.reap`.
    """

    every: timedelta | None
    max_runtime: timedelta | None

    without = "reaps"
    due_at = math.inf

    def run(self) -> None:
        """Reap claims, unless `every` is None."""
        if self.every is not None:
            self.due_at = time.monotonic() + self.every.total_seconds() * random.uniform(0.8, 1.2)
            self.attempt("a reap", lambda: self.transactions.run_once(self._reap))

    def _reap(self, session: Session) -> None:
        parts = [queue.reap(session, max_runtime=self.max_runtime) for queue in self.queues]
        reaped = [job for part in parts for job in part.jobs]
        dead = {job.owner for job in reaped if job.reason is ReapReason.DEAD_OWNER}
        if any(str(job.fence.owner) in dead for job in self.crew.claimed()):  # our lock was cut
            session.rollback()
            self.due_at = time.monotonic() + SOON.total_seconds()
            return
        if not reaped:  # nothing was written, so there is nothing to commit
            session.rollback()
        if any(part.more for part in parts):
            self.due_at = time.monotonic()


class Heartbeat:
    """Renew the claims in hand, three times in the shortest lease of the queues of a loop.

    Args:
        max_runtime: how long a job may run. After that, its claim is not renewed. If all slots
            have such a job, no claim is renewed. None: no limit.
    """

    def __init__(self, crew: Crew, loop: Loop, max_runtime: timedelta | None) -> None:
        self._crew, self._engine = crew, loop.turns.transactions.engine
        self._queues = [lane.queue for lane in loop.turns.lanes]
        self._longest = max_runtime or timedelta.max
        self._ended = crew.runtime.flag()
        self._changed = crew.runtime.condition()
        self._renewing = False
        self._refused: set[Fence] = set()  # each is logged once

    def begin(self, stack: ExitStack) -> None:
        """Renew claims at intervals, until the stack ends."""
        thread = self._crew.runtime.start(self._run, name="sa_jobqueue heartbeat")
        stack.callback(thread.join, LONGEST_RENEWAL)
        stack.callback(self._ended.set)

    def wait_for_renewal(self) -> None:
        """Wait until no renewal is under way: a finish and a renewal must not lock the same row.

        Before you call this, remove the jobs from those to be renewed.
        """
        if self._renewing:
            with self._changed:
                self._changed.wait_for(lambda: not self._renewing, LONGEST_RENEWAL)

    # -- the thread -----------------------------------------------------

    def _run(self) -> None:
        shortest = min(self._longest, *(queue.lease for queue in self._queues))
        pause = every = shortest.total_seconds() / BEATS_PER_LEASE
        while not self._ended.wait(pause):
            pause = every
            self._renewing = True  # before we read: who takes a job after this, waits
            jobs = self._within_their_time()
            try:
                if jobs:
                    with connected_outside_pool(self._engine) as connection:
                        self._renew_all(connection, jobs)
            except Exception as error:  # an application's handle_error listener raises its own
                pause = min(every / 10, SOON.total_seconds())
                _log_failure(len(jobs), error)
            finally:
                with self._changed:
                    self._renewing = False
                    self._changed.notify_all()

    def _within_their_time(self) -> list[InHand]:
        """Return the jobs whose claims are to be renewed.

        If the handler in every slot runs for too long, the unstarted jobs are left to others.
        """
        jobs = [job for job in self._crew.claimed() if not job.locked and job.ended is None]
        latest = time.monotonic() - self._longest.total_seconds()
        late = [job for job in jobs if job.outcome is NOT_YET and 0 < job.began <= latest]
        if len(late) < self._crew.slots:
            return [job for job in jobs if job not in late]
        return [job for job in jobs if job.outcome is not NOT_YET]

    def _renew_all(self, connection: Connection, jobs: Sequence[InHand]) -> None:
        """Renew claims together; if refused, one by one: a refused row costs no other claim."""
        fences = [job.fence for job in jobs]
        try:
            renew = partial(self._renew_unlocked, fences=fences)
            lost = set(run_in_transaction(connection, renew))
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(jobs) > 1:
                for job in jobs:
                    self._renew_all(connection, [job])
            elif fences[0] not in self._refused:
                self._refused.add(fences[0])
                _log_failure(1, error)
            return
        gone = [job for job, fence in zip(jobs, fences, strict=True) if fence in lost]
        for job in gone:
            job.ended = Ended.LOST
        log_lost(gone)

    def _renew_unlocked(self, session: Session, fences: Sequence[Fence]) -> list[Fence]:
        """Renew claims, but wait for no lock where the database can skip rows; return the lost."""
        unlocked, lost = lock_free_rows(session, fences)
        # Any queue will do: the fences tell theirs.
        return lost + claims_lost_by(partial(self._queues[0].renew, session, unlocked))


def _log_failure(count: int, error: Exception) -> None:
    write = log.info if is_transient(error) else log.warning
    write("the renewal of %d claims failed, and is tried again: %s", count, cause_of(error))
