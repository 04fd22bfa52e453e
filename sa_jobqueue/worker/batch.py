"""The jobs of one turn on their way through a worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from .lanes import Lane
from .outcomes import Outcome

T = TypeVar("T")


class Ended(Enum):
    """How a job ended in its handler's transaction."""

    FINISHED = auto()
    LOST = auto()


@dataclass(eq=False)
class InHand(Generic[T]):
    """A claimed job with the lane that claimed it; once it was handled, also what became of it.

    Attributes:
        attempts: as the claim wrote them, where a failed job waits by them. A handler may
            leave its job expired: then nothing can be read from it any more.
        ended: its handler's own transaction has finished it, or has found its claim lost: there
            is nothing to write any more.
    """

    lane: Lane[T]
    job: T
    attempts: int | None = None
    outcome: Outcome = None
    ended: Ended | None = None


@dataclass
class Batch(Generic[T]):
    """What a turn claimed: the jobs that are still to be handled, and those that were."""

    unhandled: deque[InHand[T]] = field(default_factory=deque)
    handled: list[InHand[T]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand."""
        return not self.unhandled and not self.handled

    def __iter__(self) -> Iterator[T]:
        for in_hand in (*self.handled, *self.unhandled):
            yield in_hand.job

    @contextmanager
    def next(self, *, given_back_by: Callable[[BaseException], bool]) -> Iterator[InHand[T]]:
        """Take the next job: it is handled at the end, however its handler ends.

        Args:
            given_back_by: tells whether an error interrupted the handler without its doing:
                then the job is put back in front.
        """
        in_hand = self.unhandled.popleft()
        try:
            yield in_hand
        except BaseException as error:
            if given_back_by(error):
                self.unhandled.appendleft(in_hand)
            else:
                self.handled.append(in_hand)
            raise
        self.handled.append(in_hand)
