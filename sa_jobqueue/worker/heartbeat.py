"""The heartbeat: a thread that renews a worker's claims while their jobs are in hand.

So a long handler keeps its claim beyond the lease, and so does a job that waits behind others
of its batch. The thread takes a new connection for each renewal, and renews by fences: it does
not touch the handler's entities. An AsyncWorker's heartbeat is a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..dialects import is_refusal, is_transient
from ..errors import ClaimLost
from ..fence.token import Fence
from ..process.runtime import THREADS, Background, Runtime
from ..sessions.transactions import connected_outside_pool, run_in_transaction

log = logging.getLogger("sa_jobqueue.worker")

#: Renewals in one lease: two of them may fail.
BEATS_PER_LEASE = 3

#: The longest pause before a failed renewal is tried again.
SOON = timedelta(seconds=1)

#: How long a finish waits for a renewal that is under way: a renewal that hangs must not
#: block the finish for ever.
LONGEST_RENEWAL = timedelta(seconds=30)

_Job: TypeAlias = tuple[int, tuple[Any, ...]]


class Heartbeat:
    """Renew the claims in hand, from ``with`` to its end.

    Args:
        engine: where renewals connect.
        renew: called with a session and fences.
        lease: claims are renewed three times in this time.
        max_runtime: how long a job may run: then renewing pauses, until the next job begins.
            None: without limit.
        beats: False where no second connection sees the same database.
        runtime: starts the heartbeat's thread or task.
    """

    def __init__(
        self,
        engine: Engine,
        renew: Callable[[Session, Sequence[Fence]], None],
        *,
        lease: timedelta,
        max_runtime: timedelta | None = None,
        beats: bool = True,
        runtime: Runtime = THREADS,
    ) -> None:
        self._engine = engine
        self._renew = renew
        shortest = lease if max_runtime is None else min(lease, max_runtime)
        self._every = shortest.total_seconds() / BEATS_PER_LEASE
        self._longest = None if max_runtime is None else max_runtime.total_seconds()
        self._beats = beats
        self._runtime = runtime
        self._thread: Background | None = None
        # Both threads change the attributes below, and hold this condition meanwhile.
        self._changed = runtime.condition()
        self._fences: tuple[Fence, ...] = ()
        self._lost: set[_Job] = set()
        self._refused: set[_Job] = set()  # the thread's own: they are logged once
        self._due = self._job_began = 0.0
        self._renewing = self._ended = False

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LONGEST_RENEWAL.total_seconds())

    def watch(self, fences: Sequence[Fence], *, aside: Sequence[Fence] = ()) -> None:
        """Renew these claims from now on, and no others.

        Args:
            fences: claims that were made just now.
            aside: older claims, which were watched before.
        """
        with self._changed:
            self._fences, self._lost = (*fences, *aside), set()
            self._job_began = time.monotonic()
            due = self._job_began + self._every
            self._due = min(self._due, due) if aside else due
            self._changed.notify_all()
        if self._fences and self._beats and self._thread is None:
            self._thread = self._runtime.start(self._run, name="sa_jobqueue heartbeat")

    def rest(self) -> None:
        """Stop renewing, and wait for a renewal under way: a finish must not meet it in a row."""
        with self._changed:
            self._fences = ()
            self._changed.wait_for(
                lambda: not self._renewing, timeout=LONGEST_RENEWAL.total_seconds()
            )

    def leave_alone(self, fence: Fence) -> None:
        """Renew this claim no more, and wait for a renewal under way."""
        with self._changed:
            self._fences = tuple(kept for kept in self._fences if _job(kept) != _job(fence))
            self._changed.wait_for(
                lambda: not self._renewing, timeout=LONGEST_RENEWAL.total_seconds()
            )

    def watch_again(self, fence: Fence) -> None:
        """Renew a claim that was left alone."""
        with self._changed:
            self._fences = (*self._fences, fence)
            self._changed.notify_all()

    def job_begins(self) -> None:
        """Count the running time of a job from now on."""
        with self._changed:
            self._job_began = time.monotonic()
            if self._longest is not None:  # else the thread wakes for nothing, after each job
                self._changed.notify_all()

    def has_lost(self, fence: Fence) -> bool:
        """Tell whether a renewal found that this claim was lost."""
        if not self._lost:  # as nearly always: then there is nothing to wait for
            return False
        with self._changed:
            return _job(fence) in self._lost

    # -- the thread -----------------------------------------------------

    def _run(self) -> None:
        while fences := self._next():
            lost: Sequence[Fence] = ()
            pause = self._every
            try:
                lost = self._renewed(fences)
            except SQLAlchemyError as error:
                pause = min(self._every / 10, SOON.total_seconds())
                _log_failure(fences, error)
            self._note(fences, lost, pause)

    def _next(self) -> tuple[Fence, ...]:
        """Wait until claims are due for renewal, and return them; at the end return none."""
        with self._changed:
            while not self._ended:
                pause = self._pause()
                if pause is not None and pause <= 0:
                    self._renewing = True
                    return self._fences
                self._changed.wait(pause)
            return ()

    def _pause(self) -> float | None:
        """Return the seconds until the next renewal; None: until something changes."""
        now = time.monotonic()
        too_long = self._longest is not None and now - self._job_began >= self._longest
        return None if too_long or not self._fences else self._due - now

    def _renewed(self, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Renew claims; return the lost ones."""
        with connected_outside_pool(self._engine) as connection:
            return self._renewed_parts(connection, fences)

    def _renewed_parts(self, connection: Connection, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Renew claims together; where that is refused, by halves: a row costs no other claim."""
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
                self._renew(session, fences)
            except ClaimLost as error:
                lost.extend(error.lost)
                log.warning("%s", error)

        run_in_transaction(connection, renew)
        return lost

    def _note_refusal(self, fence: Fence, error: SQLAlchemyError) -> None:
        if _job(fence) not in self._refused:
            self._refused.add(_job(fence))
            _log_failure([fence], error)

    def _note(self, fences: tuple[Fence, ...], lost: Sequence[Fence], pause: float) -> None:
        gone = {_job(fence) for fence in lost}
        with self._changed:
            self._renewing = False
            # Fewer than these may be in hand by now, or others.
            self._fences = tuple(fence for fence in self._fences if _job(fence) not in gone)
            self._lost |= gone
            self._due = time.monotonic() + pause
            self._changed.notify_all()


def _job(fence: Fence) -> _Job:
    return id(fence.token), fence.identity


def _log_failure(fences: Sequence[Fence], error: SQLAlchemyError) -> None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    write = log.info if is_transient(error) else log.warning
    write("renewing %d claims failed, and is tried again: %s", len(fences), cause)
