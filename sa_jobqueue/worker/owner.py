"""The owner of a worker's claims, and the heartbeat that renews them while jobs are in hand.

A worker claims under an Owner of its own, unless it is given a name.

The job of a long handler, and a job that waits behind others, keep their claims beyond the lease.
Three times in a lease, the thread renews the claims in hand. It opens a new connection for each
renewal, and renews by fences: the entities belong to the handlers. An AsyncWorker's heartbeat is a
task.

A renewal does not wait for locked rows: it would hold up all other claims. A transactional handler
or the application may lock a row for long. Nobody reaps a claim whose row is locked: the lock
replaces the lease. The claim is renewed when the row is free again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..dialects import is_refusal, is_transient
from ..errors import LockLost, UnsupportedDatabase
from ..fence.token import Fence
from ..owners.owner import Owner
from ..process import Runtime, process_name
from ..sessions.transactions import connected_outside_pool, run_in_transaction
from .in_hand import InHand, lock_free_rows, log_lost
from .lanes import NOT_YET, claims_lost_by
from .transactions import Stopped, Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")


def default_owner() -> str:
    """Return a plain name for a worker: host, process id and a random part."""
    return f"{process_name(40)}-{random.getrandbits(32):08x}"


class OwnerName:
    """The name that a worker claims under.

    Attributes:
        owner: the name, or the Owner, that claims now.
    """

    def __init__(self, owner: str | int | Owner | None, transactions: Transactions) -> None:
        self.owner: str | int | Owner = default_owner() if owner is None else owner
        self._given = owner is not None
        self._transactions = transactions
        self._lost = False

    @contextmanager
    def for_the_run(self) -> Iterator[None]:
        """Hold an Owner of our own for the run, unless a name was given."""
        if self._given:
            yield
            return
        plain, owner = self.owner, Owner(self._transactions.engine, process_name(24))
        try:
            self._patiently(owner.open)
        except UnsupportedDatabase as error:
            log.warning(
                "if this worker dies, its claims are reaped only after their lease: %s", error
            )
        else:
            self.owner = owner
        try:
            yield
        finally:
            self.owner = plain
            self._transactions.runtime.run_blocking(owner.close)

    @property
    def current(self) -> str:
        """The name as it stands in a fence."""
        owner = self.owner
        if not isinstance(owner, Owner):
            return str(owner)
        try:
            return owner.name
        except LockLost as error:
            self.note_loss(error)
            return owner.name

    def note_loss(self, error: LockLost) -> None:
        """Note that the Owner has lost its lock; from now on the worker has another name."""
        log.warning("%s", error)
        self._lost = True

    def was_lost(self) -> bool:
        """Tell whether a lock was lost since the last call."""
        lost, self._lost = self._lost, False
        return lost

    @property
    def is_sure(self) -> bool:
        """Whether the lock is held, as far as is known without waiting; a plain name has none."""
        owner = self.owner
        return not isinstance(owner, Owner) or owner.sure

    def check_lock(self) -> None:
        """Notice a lost lock, and take a new one, before a transaction begins.

        A new lock needs a connection, and the pool may have no second connection for it.
        """
        if not self.is_sure:
            with suppress(Stopped):  # then nothing is claimed any more
                self._patiently(lambda: self.current)  # reading the name checks the lock

    def _patiently(self, work: Callable[[], object]) -> None:
        runtime = self._transactions.runtime
        self._transactions.patiently(lambda: runtime.run_blocking(work))


#: Renewals in one lease: two of them may fail.
BEATS_PER_LEASE = 3

#: The longest pause before a failed renewal is tried again.
SOON = timedelta(seconds=1)

#: How long a finish waits for a renewal that is under way: a renewal that hangs must not
#: block the finish for ever.
LONGEST_RENEWAL = timedelta(seconds=30)


@dataclass
class Heartbeat:
    """Renew the claims in hand.

    Attributes:
        engine: where renewals connect.
        renew: called with a session and fences.
        in_hand: returns the jobs whose claims are to be renewed now.
        lease: claims are renewed three times in this time.
        max_runtime: how long a job may run. After that, its claim is not renewed. If all slots
            have such a job, no claim is renewed. None: no limit.
        slots: how many handlers run at once.
        runtime: starts the heartbeat's thread or task.
    """

    engine: Engine
    renew: Callable[[Session, Sequence[Fence]], None]
    in_hand: Callable[[], Sequence[InHand[Any]]]
    lease: timedelta
    max_runtime: timedelta | None
    slots: int
    runtime: Runtime

    def __post_init__(self) -> None:
        self._ended = self.runtime.flag()
        self._changed = self.runtime.condition()
        self._renewing = False
        self._refused: set[tuple[Any, ...]] = set()  # keys of rows: each is logged once

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Renew claims at intervals, from ``with`` to its end."""
        thread = self.runtime.start(self._run, name="sa_jobqueue heartbeat")
        try:
            yield
        finally:
            self._ended.set()
            thread.join(LONGEST_RENEWAL.total_seconds())

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
        shortest = self.lease if self.max_runtime is None else min(self.lease, self.max_runtime)
        pause = every = shortest.total_seconds() / BEATS_PER_LEASE
        while not self._ended.wait(pause):
            pause = every
            self._renewing = True  # before we read: who takes a job after this, waits
            jobs = self._within_their_time()
            try:
                if jobs:
                    with connected_outside_pool(self.engine) as connection:
                        self._renew_all(connection, jobs)
            except Exception as error:  # an application's handle_error listener raises its own
                pause = min(every / 10, SOON.total_seconds())
                _log_failure(len(jobs), error)
            finally:
                with self._changed:
                    self._renewing = False
                    self._changed.notify_all()

    def _within_their_time(self) -> list[InHand[Any]]:
        """Return the jobs whose claims are to be renewed.

        If the handler in every slot runs for too long, the unstarted jobs are left to others.
        """
        jobs = [job for job in self.in_hand() if not job.locked and not job.lost]
        if self.max_runtime is None:
            return jobs
        latest = time.monotonic() - self.max_runtime.total_seconds()
        late = [job for job in jobs if job.outcome is NOT_YET and 0 < job.began <= latest]
        if len(late) < self.slots:
            return [job for job in jobs if job not in late]
        return [job for job in jobs if job.outcome is not NOT_YET]

    def _renew_all(self, connection: Connection, jobs: Sequence[InHand[Any]]) -> None:
        """Renew claims together; if refused, one by one: a refused row costs no other claim."""
        fences = [job.fence for job in jobs]
        try:
            lost = run_in_transaction(connection, partial(self._renew_unlocked, fences=fences))
        except SQLAlchemyError as error:
            if not is_refusal(error):
                raise
            row = (fences[0].entity, fences[0].identity)
            if len(jobs) > 1:
                for job in jobs:
                    self._renew_all(connection, [job])
            elif row not in self._refused:
                self._refused.add(row)
                _log_failure(1, error)
            return
        gone = {(id(fence.token), fence.identity) for fence in lost}
        for job, fence in zip(jobs, fences, strict=True):
            job.lost = (id(fence.token), fence.identity) in gone
        log_lost(job for job in jobs if job.lost)

    def _renew_unlocked(self, session: Session, fences: Sequence[Fence]) -> list[Fence]:
        """Renew claims, but wait for no lock where the database can skip rows; return the lost."""
        unlocked, lost = lock_free_rows(session, fences)
        return lost + claims_lost_by(partial(self.renew, session, unlocked))


def _log_failure(count: int, error: Exception) -> None:
    write = log.info if is_transient(error) else log.warning
    write("the renewal of %d claims failed, and is tried again: %s", count, cause_of(error))
