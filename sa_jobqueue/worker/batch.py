"""The jobs of one turn on their way through a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .lanes import Lane
from .outcomes import Outcome

T = TypeVar("T")


@dataclass(eq=False)
class InHand(Generic[T]):
    """A claimed job, the lane that it came by, and, once it was handled, what became of it."""

    lane: Lane[T]
    job: T
    outcome: Outcome = None


@dataclass
class Batch(Generic[T]):
    """What a turn claimed, on its way: jobs handled, and jobs waiting."""

    waiting: list[InHand[T]] = field(default_factory=list)
    handled: list[InHand[T]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand."""
        return not self.waiting and not self.handled

    def __iter__(self) -> Iterator[T]:
        for one in (*self.handled, *self.waiting):
            yield one.job

    @contextmanager
    def next(self) -> Iterator[InHand[T]]:
        """Take the next job in hand; one that is broken off waits again."""
        one = self.waiting.pop(0)
        try:
            yield one
        except BaseException:
            self.waiting.insert(0, one)
            raise
