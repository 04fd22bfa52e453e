"""What a source must provide: it divides what is loaded into batches, and writes each.

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

docs/bulk.md tells how to write your own. InsertSource loads rows, EnqueueSource jobs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, TypeVar

from ..errors import ArgumentError
from .log import INSERTED, REMOVED, Entry

B = TypeVar("B")


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


class Writer(ABC, Generic[B]):
    """Brings batches in and takes them back, each together with its entry in the log."""

    @abstractmethod
    def update(self, batch: B, entry: Entry) -> None:
        """Bring a batch in, and write its entry."""

    @abstractmethod
    def rollback(self, batch: B, entry: Entry) -> None:
        """Take a batch back, and write its entry."""


class Source(ABC, Generic[B]):
    """What a load asks of its source.

    Every batch may be brought in, and undone, more than once. After a crash nobody
    knows whether the last batch was.
    """

    @abstractmethod
    def metadata(self) -> Metadata:
        """Return how much there is, and how it is divided."""

    @abstractmethod
    def divide(self) -> Iterator[B]:
        """Yield the batches lazily, on every call the same batches in the same order."""

    @abstractmethod
    def open_writer(self, load: str, wait: timedelta) -> AbstractContextManager[Writer[B]]:
        """Open the writer of a load, once nothing of a killed process works for it any more.

        Raises:
            LockTimeout: something still works for the load after this wait.
        """

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

    def refill(self, batch: B) -> B:
        """Complete a decoded batch by what was not logged; they come in their order."""
        return batch

    def divide_after(self, count: int) -> Iterator[B]:
        """Yield the batches after the first `count`."""
        return islice(self.divide(), count, None)

    def finish(self, batches: Iterator[B]) -> None:
        """Do what is done once, when all batches are in; idempotent."""


class DivisibleSource(Source[B]):
    """A source of batches of anything; a subclass defines four methods."""

    @abstractmethod
    def update(self, batch: B) -> None:
        """Bring a batch in; idempotent."""

    @abstractmethod
    def rollback(self, batch: B) -> None:
        """Take a batch back; idempotent."""

    def open_writer(self, load: str, wait: timedelta) -> AbstractContextManager[Writer[B]]:
        """Write log entries around :meth:`update` and :meth:`rollback`."""
        return nullcontext(_PlainWriter(self))


class _PlainWriter(Writer[B]):
    def __init__(self, source: DivisibleSource[B]) -> None:
        self._source = source

    def update(self, batch: B, entry: Entry) -> None:
        entry.before_commit(INSERTED)
        self._source.update(batch)
        entry.after_commit(INSERTED)

    def rollback(self, batch: B, entry: Entry) -> None:
        entry.before_commit(REMOVED)
        self._source.rollback(batch)
        entry.after_commit(REMOVED)


def sync_iterator(items: Iterable[B] | AsyncIterable[B]) -> Iterator[B]:
    """Iterate over a plain iterable, or an asynchronous iterable in an event loop of its own.

    Raises:
        ArgumentError: an event loop runs in this thread already.
    """
    return _in_own_loop(items) if isinstance(items, AsyncIterable) else iter(items)


def _in_own_loop(items: AsyncIterable[B]) -> Iterator[B]:
    with suppress(RuntimeError):  # there is none
        asyncio.get_running_loop()
        raise ArgumentError(
            "an asynchronous source is read in an event loop of its own, but this thread runs an "
            "event loop already: call from another thread, as by "
            "`await asyncio.to_thread(load.run)`"
        )
    iterator = aiter(items)

    async def next_item() -> B:
        return await anext(iterator)

    with asyncio.Runner() as runner, suppress(StopAsyncIteration):
        while True:
            yield runner.run(next_item())
