"""The batches to insert and the batches to roll back, from the redo log and the source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

from .log import INSERTED, NOTHING, REMOVED, Entry, Log
from .source import BatchWriter, DivisibleSource, sync_iterator
from .threads import process

#: Writes one batch, or takes it back, and its entry.
Write: TypeAlias = Callable[[BatchWriter[Any], Any, Entry], None]


class Batches:
    """The batches of a load: those of its redo log first, then those of its source.

    Args:
        check_stop: called before each batch; raises where the load is to stop.
    """

    def __init__(
        self, source: DivisibleSource[Any], log: Log, check_stop: Callable[[], None]
    ) -> None:
        self._source = source
        self._log = log
        self._check_stop = check_stop

    def to_insert(self) -> Generator[tuple[Entry, Any], None, None]:
        """Yield logged batches that are not in the table, then batches that are not logged yet."""
        missing = self.logged(lambda number: self._log.marks[number] != INSERTED)
        for number, batch in self._source.refill(missing):
            yield self._entry(number), batch
        for number, batch in self.newly_divided():
            yield self._entry(number), batch

    def to_roll_back(self) -> Generator[tuple[Entry, Any], None, None]:
        """Yield the batches that are in the table or may be.

        The last comes first, since its rows may refer to those of earlier batches.
        """
        absent = (NOTHING, REMOVED)
        present = self.logged(lambda number: self._log.marks[number] not in absent, backwards=True)
        for number, batch in present:
            yield self._entry(number), batch

    def logged(
        self, wanted: Callable[[int], bool] = lambda number: True, *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Yield batches of the redo log, without the rows, which are not logged."""
        for number, logged in self._log.redo(wanted, backwards=backwards):
            self._check_stop()
            yield number, self._source.decode(logged)

    def newly_divided(self) -> Iterator[tuple[int, Any]]:
        """Divide the source after the last logged batch; log each batch before it is yielded."""
        if self._log.redo_ended:
            return
        count = self._log.redo_count
        for number, batch in enumerate(sync_iterator(self._divide_after(count)), count):
            self._check_stop()
            self._log.add_redo(number, self._source.encode(batch))
            yield number, batch
        self._log.end_redo()

    def _divide_after(self, count: int) -> Any:
        if not count:
            return self._source.divide()
        ((_, logged),) = self._log.redo(lambda number: number == count - 1)
        return self._source.divide_after(count, self._source.decode(logged))

    def _entry(self, number: int) -> Entry:
        return Entry(self._log, number, self._log.marks[number])


def write_batches(
    source: DivisibleSource[Any],
    batches: Generator[tuple[Entry, Any], None, None],
    write: Write,
    *,
    load: str,
    workers: int,
    after_each: Callable[[], None],
) -> None:
    """Write batches with the source's writers, each of which works in a thread of its own.

    Args:
        load: the load's id.
        workers: how many threads are wanted; the source may want fewer.
        after_each: called after each batch, in the thread that has written it.
    """

    @contextmanager
    def open_worker(slot: int) -> Iterator[Callable[[tuple[Entry, Any]], None]]:
        with source.open_writer(load, slot) as writer:

            def write_one(item: tuple[Entry, Any]) -> None:
                entry, batch = item
                write(writer, batch, entry)
                after_each()

            yield write_one

    with closing(batches):  # an asynchronous source has an event loop to close
        process(batches, open_worker, workers=source.worker_count(workers))
