"""What every log of a load can do; :mod:`.file_log` and :mod:`.database_log` are two.

The redo log says what the batches are; an entry is durable before its batch is
touched. The undo log says what became of them: for each batch the last mark counts.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from .states import LoadState

#: The marks of a batch. The two in the middle of something are written before its
#: transaction commits: after a crash they mean that nobody knows, and all others that
#: one does.
NOTHING, INSERTING_IT, INSERTED, REMOVING_IT, REMOVED = range(5)

MARKS = ("nothing", "inserting", "inserted", "removing", "removed")

#: What is said before the commit that leads to a mark.
BEFORE = {INSERTED: INSERTING_IT, REMOVED: REMOVING_IT}


class Marks:
    """The last mark of every batch: one byte each, for loads of millions."""

    def __init__(self) -> None:
        self._marks = array("B")
        self._counts = [0] * len(MARKS)
        self._changing = threading.Lock()

    def __getitem__(self, number: int) -> int:
        return self._marks[number] if number < len(self._marks) else NOTHING

    def __setitem__(self, number: int, mark: int) -> None:
        with self._changing:
            missing = number + 1 - len(self._marks)
            if missing > 0:
                self._marks.extend([NOTHING] * missing)
            self._counts[self._marks[number]] -= 1
            self._marks[number] = mark
            self._counts[mark] += 1

    def __len__(self) -> int:
        """Return the number behind the last batch that has a mark."""
        return len(self._marks)

    def count(self, mark: int) -> int:
        """Return how many batches have this mark, but for NOTHING."""
        return self._counts[mark]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a log knows about its load as a whole.

    Attributes:
        id: tells this load from every other.
        state: as it is stored.
        metadata: the source's, as JSON.
        workers: the most that have worked at the same time.
        cleaning: the logs are being deleted.
    """

    id: str
    state: LoadState
    metadata: Mapping[str, Any]
    workers: int = 1
    cleaning: bool = False


class Log(ABC):
    """Keep what a load is about to do, and what it has done.

    Between :meth:`open` and :meth:`close` nobody else writes it. The methods
    with a batch's number may be called from several threads at once.
    """

    marks: Marks

    @property
    @abstractmethod
    def name(self) -> str:
        """What tells this log from others, as text."""

    @abstractmethod
    def open(self) -> Head | None:
        """Take the log for this manager alone and read it; None: there is none yet.

        Raises:
            LockTimeout: another manager has it.
            BrokenLog: it cannot be read, or it is not one.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the log; nothing happens if it is not open."""

    @abstractmethod
    def peek(self) -> tuple[Head | None, bool]:
        """Read the log beside whoever works with it; tell whether somebody does."""

    @abstractmethod
    def begin(self, head: Head) -> None:
        """Make a new log."""

    @abstractmethod
    def store(self, head: Head) -> None:
        """Store what has changed; durable."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all there is; may be broken off and called again."""

    # -- redo -----------------------------------------------------------

    @property
    @abstractmethod
    def redo_count(self) -> int:
        """How many batches the redo log has."""

    @property
    @abstractmethod
    def redo_ended(self) -> bool:
        """Whether the last batch is in it."""

    @abstractmethod
    def forget_redo(self) -> None:
        """Write the redo log anew."""

    @abstractmethod
    def add_redo(self, number: int, batch: Any) -> None:
        """Add a batch; durable."""

    @abstractmethod
    def end_redo(self) -> None:
        """Say that this was the last batch; durable."""

    @abstractmethod
    def redo(
        self, wanted: Callable[[int], bool], *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Read the batches that are wanted, in their order or backwards, lazily."""

    # -- undo -----------------------------------------------------------

    def joins(self, engine: Engine) -> bool:
        """Tell whether a mark can be written in a transaction of this engine."""
        return False

    @abstractmethod
    def before_commit(
        self, number: int, mark: int, connection: Connection | None, kept: Any = None
    ) -> None:
        """Say, durably, that a batch is about to be committed.

        Args:
            mark: what it will have then: INSERTED or REMOVED.
            connection: the one that commits, where the log :meth:`joins` it.
            kept: what the source wants to know when it takes the batch back, as JSON.
        """

    @abstractmethod
    def after_commit(self, number: int, mark: int) -> None:
        """Say that a batch is committed."""

    @abstractmethod
    def not_committed(self, number: int, before: int) -> None:
        """Say that a batch is certainly not committed, and has the mark it had before."""

    @abstractmethod
    def kept(self, number: int) -> Any:
        """Return what was kept of a batch; None: nothing."""


@dataclass(frozen=True)
class Entry:
    """A batch's place in the undo log.

    Attributes:
        mark: what it had when it was taken up.
    """

    log: Log
    number: int
    mark: int

    @property
    def doubtful(self) -> bool:
        """Whether a killed process may have committed this batch, or may not."""
        return self.mark in (INSERTING_IT, REMOVING_IT)

    @property
    def kept(self) -> Any:
        """What was kept of the batch, by an earlier process."""
        return self.log.kept(self.number)

    def before_commit(
        self, mark: int, connection: Connection | None = None, kept: Any = None
    ) -> None:
        """Say that the batch is about to be committed, in this transaction if that can be."""
        if connection is not None and not self.log.joins(connection.engine):
            connection = None
        self.log.before_commit(self.number, mark, connection, kept)

    def after_commit(self, mark: int) -> None:
        """Say that the batch is committed."""
        self.log.after_commit(self.number, mark)

    def not_committed(self) -> None:
        """Say that the batch is as it was when it was taken up."""
        self.log.not_committed(self.number, self.mark)
