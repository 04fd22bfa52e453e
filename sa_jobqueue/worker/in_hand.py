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


@dataclass(eq=False)
class InHand(Generic[T]):
    """A claimed job with the lane that claimed it; once it was handled, also what became of it.

    Attributes:
        claim: what claimed it, with others perhaps.
        attempts: as the claim wrote them, where a failed job waits by them. A handler may
            leave its job expired: then nothing can be read from it any more.
        outcome: NOT_YET until its handler has returned or raised: until then no finish takes it.
        ended: its handler's own transaction has finished it, or has found its claim lost: there
            is nothing to write any more.
        began: when its handler began, by time.monotonic().
        duration: for how many seconds its handler ran, or had run when it was given up.
        locked: its handler's own transaction holds the lock of its row: that is its lease.
        lost: a renewal has found that the claim was lost.
        given_up: why the worker waits no longer for its handler, whose result is ignored.
        asked_to_stop: somebody wants this handler to end early.
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
