"""A source without a database: what is in its table is a set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sa_jobqueue.bulk import DivisibleSource, Metadata


class Killed(BaseException):
    """The process is gone; nothing of it runs any more."""


class Numbers(DivisibleSource[list[int]]):
    """Load the numbers below `total` into a table."""

    def __init__(self, total: int, batch_size: int, table: set[int] | None = None) -> None:
        self.total, self.batch_size = total, batch_size
        self.table = set() if table is None else table
        self.updated: list[list[int]] = []
        self.rolled_back: list[list[int]] = []
        self.before: Callable[[str, list[int]], object] = lambda verb, batch: None
        self.after: Callable[[str, list[int]], object] = lambda verb, batch: None

    def metadata(self) -> Metadata:
        return Metadata(total=self.total, batch_size=self.batch_size)

    def divide(self) -> Iterator[list[int]]:
        for begin in range(0, self.total, self.batch_size):
            self.before("divide", [begin])
            yield list(range(begin, min(begin + self.batch_size, self.total)))

    def update(self, batch: list[int]) -> None:
        self.before("update", batch)
        self.updated.append(batch)
        self.table.update(batch)
        self.after("update", batch)

    def rollback(self, batch: list[int]) -> None:
        self.before("rollback", batch)
        self.rolled_back.append(batch)
        self.table.difference_update(batch)
        self.after("rollback", batch)

    def killed(self, when: str, verb: str, first: int) -> Numbers:
        """Kill the process before or after the batch that begins with a number."""

        def kill(now: str, batch: list[int]) -> None:
            if (now, batch[0]) == (verb, first):
                raise Killed

        setattr(self, when, kill)
        return self

    def anew(self) -> Numbers:
        """Give the same source as another process has it: the table is the same."""
        return Numbers(self.total, self.batch_size, self.table)
