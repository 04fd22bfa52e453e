"""What is loaded: a source that can be divided into batches.

::

    class Files(DivisibleSource[str]):
        def metadata(self):
            return Metadata(total=len(NAMES), batch_size=1)

        def divide(self):
            yield from NAMES                     # lazily; what is logged is JSON

        def update(self, name):
            upload(name)                         # twice is as once

        def rollback(self, name):
            remove(name)                         # twice is as once

:class:`~sa_jobqueue.bulk.InsertSource` is the one for rows of a mapped class.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from ..errors import ArgumentError
from .log import INSERTED, REMOVED, Entry

B = TypeVar("B")
Taken = TypeVar("Taken", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What is stored with the log, and given back to the source on resume.

    Attributes:
        total: how many rows, or other units, there are; None: nobody knows yet.
        batch_size: how many of them a batch has; the last one may have fewer.
        details: what else the source wants to know again, as JSON.
    """

    total: int | None
    batch_size: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or (self.total is not None and self.total < 0):
            raise ArgumentError(
                f"a batch has at least one row, and there are none or more of them: {self}"
            )

    @property
    def batches(self) -> int | None:
        """How many batches there are."""
        return None if self.total is None else -(-self.total // self.batch_size)


class Hand(Protocol[Taken]):
    """What a source gives one of the connections that work at the same time."""

    def update(self, batch: Taken, entry: Entry) -> None:
        """Bring a batch in, and have its entry written."""

    def rollback(self, batch: Taken, entry: Entry) -> None:
        """Take a batch back, and have its entry written."""


class DivisibleSource(ABC, Generic[B]):
    """A source of batches; a subclass says at least the first four.

    Every batch may be brought in, and taken back, more than once: after a crash
    nobody knows whether the last ones were.
    """

    @abstractmethod
    def metadata(self) -> Metadata:
        """Tell how much there is, and how it is divided."""

    @abstractmethod
    def divide(self) -> Iterator[B] | AsyncIterator[B]:
        """Yield the batches, lazily, and each time the same ones in the same order."""

    @abstractmethod
    def update(self, batch: B) -> None:
        """Bring a batch in; idempotent."""

    @abstractmethod
    def rollback(self, batch: B) -> None:
        """Take a batch back; idempotent."""

    def resume(self, metadata: Metadata) -> None:
        """Take back what :meth:`metadata` said when the load began.

        Raises:
            SourceChanged: this is another source now.
        """

    def encode(self, batch: B) -> Any:
        """Return what the redo log keeps of a batch, as JSON."""
        return batch

    def decode(self, logged: Any) -> B:
        """Make a batch of what the redo log has kept."""
        batch: B = logged
        return batch

    def refill(self, batches: Iterator[tuple[int, B]]) -> Iterator[tuple[int, B]]:
        """Put back into decoded batches, which come with their numbers, what was not logged."""
        return batches

    def divide_after(self, count: int, last: B | None) -> Iterator[B] | AsyncIterator[B]:
        """Yield the batches that follow the first `count`, the last of which is given."""
        return islice(in_step(self.divide()), count, None)

    def workers_of(self, wanted: int) -> int:
        """Return how many threads may work at once; 0: the calling thread does."""
        return wanted

    def await_predecessors(self, load: str, slots: int, wait: timedelta) -> None:
        """Wait until nobody is left who works for a load that was killed.

        Args:
            load: the load's own name.
            slots: how many have worked for it at the same time.
            wait: for how long at most.

        Raises:
            LockTimeout: somebody still does.
        """

    def at_work(self, load: str, slot: int) -> AbstractContextManager[Hand[B]]:
        """Open what one thread needs."""
        return nullcontext(PlainHand(self))

    def finish(self, batches: Iterator[B]) -> None:
        """Do what is done once when all batches are in; idempotent."""


class PlainHand(Generic[B]):
    """Keep the log beside a source that knows nothing of it."""

    def __init__(self, source: DivisibleSource[B]) -> None:
        self._source = source

    def update(self, batch: B, entry: Entry) -> None:
        """Bring a batch in."""
        entry.before_commit(INSERTED)
        self._source.update(batch)
        entry.after_commit(INSERTED)

    def rollback(self, batch: B, entry: Entry) -> None:
        """Take a batch back."""
        entry.before_commit(REMOVED)
        self._source.rollback(batch)
        entry.after_commit(REMOVED)


def in_step(batches: Iterable[B] | AsyncIterable[B]) -> Iterator[B]:
    """Iterate over what is asynchronous, too, in an event loop of its own.

    Raises:
        ArgumentError: one runs in this thread already.
    """
    if not isinstance(batches, AsyncIterable):
        return iter(batches)
    _refuse_running_loop()
    return _awaited(aiter(batches))


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ArgumentError(
        "what is asynchronous is read in an event loop of its own, and one runs in this thread "
        "already: call from another one, as by `await asyncio.to_thread(load.run)`"
    )


async def _next(batches: AsyncIterator[B]) -> B:
    return await anext(batches)


def _awaited(batches: AsyncIterator[B]) -> Iterator[B]:
    with asyncio.Runner() as runner:
        while True:
            try:
                batch = runner.run(_next(batches))
            except StopAsyncIteration:
                return
            yield batch
