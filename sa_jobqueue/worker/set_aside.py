"""Jobs that can be neither finished nor failed are set aside, and tried again later.

A constraint or a trigger may refuse every write to a row, or somebody may lock it for long. Such a
job was handled: nobody may handle it again, and it must not hold up other jobs. It therefore stays
claimed, and its claim is renewed as long as the worker runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from .in_hand import InHand
from .log_records import job_fields, job_name
from .refusals import Refused, RefusedFinish
from .transactions import Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")

#: The pauses between two tries: each is twice as long as the one before, and a try may have to
#: wait for a lock.
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)


@dataclass
class SetAside(Generic[T]):
    """The jobs of a worker that are set aside.

    Attributes:
        finishing: returns a RefusedFinish for jobs whose turn was refused.
        wait_for_renewal: waits until no renewal is under way.
    """

    transactions: Transactions
    finishing: Callable[[], RefusedFinish[T]]
    wait_for_renewal: Callable[[], None]
    _refused: list[Refused[T]] = field(default_factory=list)
    _next: float = 0.0
    _trying: bool = False
    _pause: timedelta = FIRST_PAUSE

    @property
    def resting(self) -> list[InHand[T]]:
        """The jobs set aside; their claims are renewed, except during a try."""
        return [] if self._trying else [refused.in_hand for refused in self._refused]

    def add(self, jobs: Sequence[Refused[T]]) -> None:
        """Set jobs aside, and log for each what refuses it."""
        for refused in jobs:
            fields = {**job_fields(refused.in_hand), "status": None}  # not yet the new one
            log.error(
                "%s can be neither finished nor failed. The worker goes on with other jobs and "
                "tries again; find out what refuses or locks its row: %s",
                job_name(fields),
                cause_of(refused.error),
                extra=fields,
            )
        if jobs and not self._refused:  # later ones do not put off the next try
            self._pause = FIRST_PAUSE
            self._next = time.monotonic() + FIRST_PAUSE.total_seconds()
        self._refused += jobs

    def try_again(self) -> list[InHand[T]]:
        """If a try is due, finish the jobs that the database now takes; return them."""
        if not self._refused or time.monotonic() < self._next:
            return []
        finished = self._try()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next = time.monotonic() + self._pause.total_seconds()
        return finished

    def last_try(self) -> list[InHand[T]]:
        """Finish the jobs that can be finished before the worker ends; return them.

        It waits for locks, for PATIENCE at most, but not for other refusals, which do not pass.
        """
        finished: list[InHand[T]] = []
        pauses = self.transactions.pauses()
        while self._refused:
            finished += self._try()
            locked = any(self.transactions.is_temporary(left.error) for left in self._refused)
            if pauses.are_over or not locked:
                break
            pauses.pause()
        for refused in self._refused:
            fields = {**job_fields(refused.in_hand), "status": None}  # not yet the new one
            log.error(
                "%s stays claimed; a reap returns it to the queue", job_name(fields), extra=fields
            )
        self._refused = []
        return finished

    def _try(self) -> list[InHand[T]]:
        finishing = self.finishing()
        self._trying = True
        self.wait_for_renewal()
        try:
            finishing.run_once(self._refused)
            self._refused = finishing.left
        finally:
            self._trying = False
        return finishing.finished
