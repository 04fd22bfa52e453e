"""The heartbeat: a thread that renews a worker's claims while their jobs are in hand.

The job of a long handler, and a job that waits behind others, keep their claims beyond the lease.
Three times in a lease, the thread renews the claims in hand. It opens a new connection for each
renewal, and renews by fences: the entities belong to the handlers. An AsyncWorker's heartbeat is a
task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..dialects import is_refusal, is_transient
from ..errors import ClaimLost
from ..fence.token import Fence
from ..process import THREADS, Background, Runtime
from ..sessions.transactions import connected_outside_pool, run_in_transaction
from .in_hand import InHand
from .log_records import log_lost
from .outcomes import NOT_YET
from .renewal import renew_unlocked

log = logging.getLogger("sa_jobqueue.worker")

#: Renewals in one lease: two of them may fail.
BEATS_PER_LEASE = 3

#: The longest pause before a failed renewal is tried again.
SOON = timedelta(seconds=1)

#: How long a finish waits for a renewal that is under way: a renewal that hangs must not
#: block the finish for ever.
LONGEST_RENEWAL = timedelta(seconds=30)


class Heartbeat:
    """Renew the claims in hand, from ``with`` to its end.

    Args:
        engine: where renewals connect.
        renew: called with a session and fences.
        in_hand: returns the jobs whose claims are to be renewed now.
        lease: claims are renewed three times in this time.
        max_runtime: how long a job may run. After that, its claim is not renewed. If all slots
            have such a job, no claim is renewed. None: no limit.
        slots: how many handlers run at once.
        beats: False if no second connection sees the same database.
        runtime: starts the heartbeat's thread or task.
    """

    def __init__(
        self,
        engine: Engine,
        renew: Callable[[Session, Sequence[Fence]], None],
        in_hand: Callable[[], Sequence[InHand[Any]]],
        *,
        lease: timedelta,
        max_runtime: timedelta | None = None,
        slots: int = 1,
        beats: bool = True,
        runtime: Runtime = THREADS,
    ) -> None:
        self._engine = engine
        self._renew = renew
        self._in_hand = in_hand
        shortest = lease if max_runtime is None else min(lease, max_runtime)
        self._every = shortest.total_seconds() / BEATS_PER_LEASE
        self._longest = None if max_runtime is None else max_runtime.total_seconds()
        self._slots = slots
        self._beats = beats
        self._runtime = runtime
        self._thread: Background | None = None
        self._refused: set[tuple[Any, ...]] = set()  # keys of rows: each is logged once
        # Other threads wait for the end of a renewal, and end the thread.
        self._changed = runtime.condition()
        self._renewing = self._ended = False

    def __enter__(self) -> Heartbeat:
        if self._beats:
            self._thread = self._runtime.start(self._run, name="sa_jobqueue heartbeat")
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LONGEST_RENEWAL.total_seconds())

    def wait_for_renewal(self) -> None:
        """Wait until no renewal is under way: a finish and a renewal must not lock the same row.

        Before you call this, remove the jobs from those to be renewed.
        """
        if self._renewing:
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._renewing, timeout=LONGEST_RENEWAL.total_seconds()
                )

    # -- the thread -----------------------------------------------------

    def _run(self) -> None:
        pause = self._every
        while self._wait(pause):
            pause = self._every
            self._renewing = True  # before we read: who takes a job after this, waits
            jobs = self._within_their_time()
            try:
                self._note(jobs, self._renewed([job.fence for job in jobs]))
            except Exception as error:  # an application's handle_error listener raises its own
                pause = min(self._every / 10, SOON.total_seconds())
                _log_failure(len(jobs), error)
            finally:
                with self._changed:
                    self._renewing = False
                    self._changed.notify_all()

    def _wait(self, pause: float) -> bool:
        """Wait until claims are due for renewal; False: the run has ended."""
        until = time.monotonic() + pause
        with self._changed:
            while not self._ended and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._ended

    def _within_their_time(self) -> list[InHand[Any]]:
        """Return the jobs whose claims are to be renewed.

        If the handler in every slot runs for too long, the unstarted jobs are left to others.
        """
        jobs = [job for job in self._in_hand() if not job.locked and not job.lost]
        if self._longest is None:
            return jobs
        latest = time.monotonic() - self._longest
        handled = [job for job in jobs if job.outcome is not NOT_YET]
        others = [job for job in jobs if job.outcome is NOT_YET]
        in_time = [job for job in others if not job.began or job.began > latest]
        return [*handled, *in_time] if len(others) - len(in_time) < self._slots else handled

    def _renewed(self, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Renew claims; return the lost ones."""
        if not fences:
            return ()
        with connected_outside_pool(self._engine) as connection:
            return self._renewed_parts(connection, fences)

    def _renewed_parts(self, connection: Connection, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Renew claims together; if refused, by halves: a refused row costs no other claim."""
        try:
            return self._renewed_together(connection, fences)
        except SQLAlchemyError as error:
            if not is_refusal(error):
                raise
            if len(fences) == 1:
                self._note_refusal(fences[0], error)
                return ()
        half = len(fences) // 2
        return [
            *self._renewed_parts(connection, fences[:half]),
            *self._renewed_parts(connection, fences[half:]),
        ]

    def _renewed_together(self, connection: Connection, fences: Sequence[Fence]) -> Sequence[Fence]:
        lost: list[Fence] = []

        def renew(session: Session) -> None:
            try:
                renew_unlocked(session, fences, self._renew)
            except ClaimLost as error:
                lost.extend(error.lost)

        run_in_transaction(connection, renew)
        return lost

    def _note_refusal(self, fence: Fence, error: SQLAlchemyError) -> None:
        row = (fence.entity, fence.identity)
        if row not in self._refused:
            self._refused.add(row)
            _log_failure(1, error)

    def _note(self, jobs: Sequence[InHand[Any]], lost: Sequence[Fence]) -> None:
        gone = {(id(fence.token), fence.identity) for fence in lost}
        for job in jobs if gone else ():
            fence = job.fence
            job.lost = (id(fence.token), fence.identity) in gone
        log_lost(job for job in jobs if job.lost)


def _log_failure(count: int, error: Exception) -> None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    write = log.info if is_transient(error) else log.warning
    write("the renewal of %d claims failed, and is tried again: %s", count, cause)
