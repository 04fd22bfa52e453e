"""The contract of a source: it divides what is loaded into batches, and writes each.

::

    class Files(DivisibleSource[str]):
        def metadata(self):
            return Metadata(total=len(NAMES), batch_size=1)

        def divide(self):
            yield from NAMES                     # lazily; a batch is logged as JSON

        def update(self, name):
            upload(name)                         # idempotent

        def rollback(self, name):
            remove(name)                         # idempotent

`sources/` has a source for rows of a mapped class and a source for jobs; docs/bulk.md
tells how to write your own.
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
from .log import INSERTED, REMOVED, Entry, Head

B = TypeVar("B")
Written = TypeVar("Written", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What the log stores of a source, and gives back to it on resume.

    Attributes:
        total: how many rows, or other units, there are; None: nobody knows yet.
        batch_size: how many of them a batch has; the last may have fewer.
        details: anything else that the source needs to know again, as JSON.

    Raises:
        ArgumentError: `batch_size` is below 1, or `total` is negative.
    """

    total: int | None
    batch_size: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or (self.total is not None and self.total < 0):
            raise ArgumentError(
                f"a batch has at least one row, and the total is not negative: {self}"
            )

    @property
    def batches(self) -> int | None:
        """How many batches there are."""
        return None if self.total is None else -(-self.total // self.batch_size)


def metadata_of(head: Head) -> Metadata:
    """Return the metadata that the source gave when the load began."""
    return Metadata(**head.metadata)


class BatchWriter(Protocol[Written]):
    """Writes batches for one of the threads that work at the same time."""

    def update(self, batch: Written, entry: Entry) -> None:
        """Bring a batch in, and write its entry."""

    def rollback(self, batch: Written, entry: Entry) -> None:
        """Take a batch back, and write its entry."""


class DivisibleSource(ABC, Generic[B]):
    """A source of batches; a subclass defines at least the first four methods.

    Every batch may be brought in, and undone, more than once. After a crash nobody
    knows which of the last batches were.
    """

    @abstractmethod
    def metadata(self) -> Metadata:
        """Return how much there is, and how it is divided."""

    @abstractmethod
    def divide(self) -> Iterator[B] | AsyncIterator[B]:
        """Yield the batches lazily, on every call the same batches in the same order."""

    @abstractmethod
    def update(self, batch: B) -> None:
        """Bring a batch in; idempotent."""

    @abstractmethod
    def rollback(self, batch: B) -> None:
        """Take a batch back; idempotent."""

    def resume(self, metadata: Metadata) -> None:
        """Accept what :meth:`metadata` returned when the load began.

        Raises:
            SourceChanged: this is a different source.
        """

    def encode(self, batch: B) -> Any:
        """Return what the redo log keeps of a batch, as JSON."""
        return batch

    def decode(self, logged: Any) -> B:
        """Return the batch of a redo entry."""
        batch: B = logged
        return batch

    def refill(self, batches: Iterator[tuple[int, B]]) -> Iterator[tuple[int, B]]:
        """Complete decoded batches, which come with their numbers, by what was not logged."""
        return batches

    def divide_after(self, count: int, last: B | None) -> Iterator[B] | AsyncIterator[B]:
        """Yield the batches after the first `count`, the last of which is `last`."""
        return islice(sync_iterator(self.divide()), count, None)

    def worker_count(self, wanted: int) -> int:
        """Return how many threads may work at once; 0: the calling thread works."""
        return wanted

    def wait_for_slots(self, load: str, slots: int, wait: timedelta) -> None:
        """Wait until nothing of a killed process works for a load any more.

        Args:
            load: the load's id.
            slots: how many workers the load has had at the same time.
            wait: how long to wait at most.

        Raises:
            LockTimeout: something still works for the load.
        """

    def open_writer(self, load: str, slot: int) -> AbstractContextManager[BatchWriter[B]]:
        """Open the writer of one thread.

        Args:
            load: the load's id.
            slot: the thread's number, from 0.
        """
        return nullcontext(PlainWriter(self))

    def finish(self, batches: Iterator[B]) -> None:
        """Do what is done once, when all batches are in; idempotent."""


class PlainWriter(Generic[B]):
    """Write the log entries around a source's own `update` and `rollback`."""

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


def sync_iterator(batches: Iterable[B] | AsyncIterable[B]) -> Iterator[B]:
    """Iterate over a plain iterable, or an asynchronous iterable in an event loop of its own.

    Raises:
        ArgumentError: an event loop runs in this thread already.
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
        "an asynchronous source is read in an event loop of its own, but this thread runs an event "
        "loop already: call from another thread, as by `await asyncio.to_thread(load.run)`"
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
