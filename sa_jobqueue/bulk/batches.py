"""Which batches are to be inserted, and which to be rolled back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from .log import INSERTED, NOTHING, REMOVED, Entry, Log
from .source import DivisibleSource, in_step


class Batches:
    """The batches of a load: from its redo log first, then from its source.

    Args:
        check_stop: called before each; raises where the load is to stop.
    """

    def __init__(
        self, source: DivisibleSource[Any], log: Log, check_stop: Callable[[], None]
    ) -> None:
        self._source = source
        self._log = log
        self._check_stop = check_stop

    def to_insert(self) -> Generator[tuple[Entry, Any], None, None]:
        """Yield what is in the redo log and not in the table, then what is in neither."""
        missing = self.logged(lambda number: self._log.marks[number] != INSERTED)
        for number, batch in self._source.refill(missing):
            yield self._entry(number), batch
        for number, batch in self.newly_divided():
            yield self._entry(number), batch

    def to_roll_back(self) -> Generator[tuple[Entry, Any], None, None]:
        """Yield what is in the table, and what may be; the last first: it may refer to others."""
        absent = (NOTHING, REMOVED)
        present = self.logged(lambda number: self._log.marks[number] not in absent, backwards=True)
        for number, batch in present:
            yield self._entry(number), batch

    def logged(
        self, wanted: Callable[[int], bool] = lambda number: True, *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Yield batches of the redo log, without what is not logged."""
        for number, logged in self._log.redo(wanted, backwards=backwards):
            self._check_stop()
            yield number, self._source.decode(logged)

    def newly_divided(self) -> Iterator[tuple[int, Any]]:
        """Divide on behind the last batch of the redo log; each is durable when it comes."""
        if self._log.redo_ended:
            return
        count = self._log.redo_count
        for number, batch in enumerate(in_step(self._divided_after(count)), count):
            self._check_stop()
            self._log.add_redo(number, self._source.encode(batch))
            yield number, batch
        self._log.end_redo()

    def _divided_after(self, count: int) -> Any:
        if not count:
            return self._source.divide()
        ((_, logged),) = self._log.redo(lambda number: number == count - 1)
        return self._source.divide_after(count, self._source.decode(logged))

    def _entry(self, number: int) -> Entry:
        return Entry(self._log, number, self._log.marks[number])
