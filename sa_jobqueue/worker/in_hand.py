"""A claimed job on its way through a worker, and what a turn does with several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from ..fence.claim import Claim, fence_of
from ..fence.token import Fence
from .lanes import Lane
from .outcomes import NOT_YET, NotYet, Outcome

T = TypeVar("T")


class Ended(Enum):
    """How a job ended in its handler's transaction."""

    FINISHED = auto()
    LOST = auto()


@dataclass(eq=False, slots=True)
class InHand(Generic[T]):
    """A claimed job with its lane; once it was handled, also with its outcome.

    Attributes:
        claim: the claim that it belongs to, perhaps with other jobs.
        attempts: as the claim wrote them, if the delay depends on them. They are kept here
            because a handler may leave its job expired, and then nothing can be read from it.
        outcome: NOT_YET until its handler has returned or raised; until then, it is not finished.
        ended: its handler's own transaction has finished the job, or has found its claim lost:
            nothing is left to write.
        began: when its handler began, by time.monotonic().
        duration: for how many seconds its handler ran, until its end or until it was given up.
        locked: its handler's own transaction holds the lock of its row, which replaces the lease.
        lost: a renewal has found that the claim was lost.
        given_up: why the worker no longer waits for its handler, and ignores its result.
        asked_to_stop: somebody wants this handler to end early.
        may_be_finished: a transaction that finishes it has come to its COMMIT; if the answer was
            lost, nobody knows whether it has succeeded.
    """

    lane: Lane[T]
    job: T
    claim: Claim[T] | None = None
    attempts: int | None = None
    outcome: Outcome | NotYet = field(default=NOT_YET, init=False)
    ended: Ended | None = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    duration: float = field(default=0.0, init=False)
    locked: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)
    given_up: BaseException | None = field(default=None, init=False)
    asked_to_stop: bool = field(default=False, init=False)
    may_be_finished: bool = field(default=False, init=False)

    @property
    def fence(self) -> Fence:
        """The fence of its claim."""
        return fence_of(self.job)

    @property
    def known_outcome(self) -> Outcome:
        """Its outcome, once it was handled."""
        assert self.outcome is not NOT_YET, f"{self.fence!r} was not handled yet"
        return self.outcome

    @property
    def deadline(self) -> float | None:
        """When its handler has to have ended, by time.monotonic(); None: it has no timeout."""
        timeout = self.lane.timeout
        return None if timeout is None else self.began + timeout.total_seconds()


@dataclass
class Batch(Generic[T]):
    """What one turn is to do.

    Attributes:
        handled: jobs to finish.
        unhandled: jobs to release.
        wanted: the most jobs to claim; 0: none.
    """

    handled: Sequence[InHand[T]] = ()
    unhandled: Sequence[InHand[T]] = ()
    wanted: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no job is to be finished or released."""
        return not self.handled and not self.unhandled
