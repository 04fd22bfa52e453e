"""The contract of a load's log; `logs/` has a log in files and a log in the database.

The redo log says what the batches are; an entry is durable before its batch is
touched. The undo log says what became of them: the last mark of each batch counts.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine

from ..errors import BrokenLog
from .states import LoadState

#: The marks of a batch. The two in doubt are written before the batch's transaction
#: commits: after a crash nobody knows whether it did. All other marks are certain.
NOTHING, INSERT_IN_DOUBT, INSERTED, REMOVAL_IN_DOUBT, REMOVED = range(5)

#: How each mark is written in a file.
MARKS = ("nothing", "inserting", "inserted", "removing", "removed")

#: The mark that is written before the commit that leads to INSERTED or REMOVED.
IN_DOUBT = {INSERTED: INSERT_IN_DOUBT, REMOVED: REMOVAL_IN_DOUBT}


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
        """Return the number of the last batch that has a mark, plus 1."""
        return len(self._marks)

    def count(self, mark: int) -> int:
        """Return how many batches have this mark, which is not NOTHING."""
        return self._counts[mark]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a log knows about its load as a whole.

    Attributes:
        id: unique for each load.
        state: as it is stored.
        metadata: what the source's `metadata()` returned, as JSON.
        workers: the greatest number of workers that have been at work at the same time.
        cleaning: whether the logs are being deleted.
    """

    id: str
    state: LoadState
    metadata: Mapping[str, Any]
    workers: int = 1
    cleaning: bool = False


class Log(ABC):
    """Keep what a load is about to do, and what it has done.

    Between :meth:`open` and :meth:`close` nobody else writes to it. The methods
    that take a batch's number may be called from several threads at once.

    Attributes:
        marks: the last mark of every batch.
        redo_count: how many batches the redo log has.
        redo_ended: whether the last batch is among them.
    """

    marks: Marks
    redo_count: int
    redo_ended: bool

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Forget everything that was read of a load."""
        self._load_id = ""
        self.marks = Marks()
        self.redo_count = 0
        self.redo_ended = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The log's folder or name, unique among the logs in use."""

    @abstractmethod
    def open(self) -> Head | None:
        """Lock the log for this manager and read it; None: there is no load in it yet.

        Raises:
            LockTimeout: another manager has it.
            BrokenLog: it cannot be read, or it is not a log.
        """

    @abstractmethod
    def close(self) -> None:
        """Unlock the log; a log that is not open is left as it is."""

    @abstractmethod
    def peek(self) -> tuple[Head | None, bool]:
        """Read the log without locking it; tell whether a manager has it locked."""

    @abstractmethod
    def begin(self, head: Head) -> None:
        """Create the log of a new load."""

    @abstractmethod
    def store(self, head: Head) -> None:
        """Store a changed head durably."""

    @abstractmethod
    def clear(self) -> None:
        """Delete everything; may be interrupted and called again."""

    # -- redo -----------------------------------------------------------

    @abstractmethod
    def clear_redo(self) -> None:
        """Empty the redo log."""

    @abstractmethod
    def add_redo(self, number: int, batch: Any) -> None:
        """Add a batch durably."""

    @abstractmethod
    def end_redo(self) -> None:
        """Note durably that the batch added last is the last of the load."""

    @abstractmethod
    def redo(
        self, wanted: Callable[[int], bool], *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Read the wanted batches lazily, in their order or backwards."""

    # -- undo -----------------------------------------------------------

    def shares_transactions(self, engine: Engine) -> bool:
        """Tell whether a mark can be written in a transaction of this engine."""
        return False

    @abstractmethod
    def before_commit(
        self, number: int, mark: int, connection: Connection | None, kept: Any = None
    ) -> None:
        """Note durably that a batch is about to be committed.

        Args:
            mark: the batch's mark after the commit: INSERTED or REMOVED.
            connection: the connection that commits, where the log
                :meth:`~sa_jobqueue.bulk.Log.shares_transactions` with it.
            kept: what the source needs when it takes the batch back, as JSON.
        """

    @abstractmethod
    def after_commit(self, number: int, mark: int) -> None:
        """Note that a batch is committed."""

    @abstractmethod
    def not_committed(self, number: int, before: int) -> None:
        """Note that a batch is certainly not committed, and has the mark it had before."""

    @abstractmethod
    def kept(self, number: int) -> Any:
        """Return what was kept for a batch; None: nothing."""


@dataclass(frozen=True)
class Entry:
    """The entry of one batch in the undo log.

    Attributes:
        mark: the batch's mark when work on it began.
    """

    log: Log
    number: int
    mark: int

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if a killed process committed this batch."""
        return self.mark in IN_DOUBT.values()

    @property
    def kept(self) -> Any:
        """What an earlier process kept for the batch."""
        return self.log.kept(self.number)

    def before_commit(
        self, mark: int, connection: Connection | None = None, kept: Any = None
    ) -> None:
        """Note that the batch is about to be committed, in this transaction where possible."""
        if connection is not None and not self.log.shares_transactions(connection.engine):
            connection = None
        self.log.before_commit(self.number, mark, connection, kept)

    def after_commit(self, mark: int) -> None:
        """Note that the batch is committed."""
        self.log.after_commit(self.number, mark)

    def not_committed(self) -> None:
        """Note that the batch is as it was when work on it began."""
        if self.log.marks[self.number] != self.mark:
            self.log.not_committed(self.number, self.mark)


def refuse_format(log: str, found: Any, *, readable: int) -> NoReturn:
    """Refuse a log that another release has written.

    Raises:
        BrokenLog: always.
    """
    raise BrokenLog(
        f"{log} has the format {found}; this release reads {readable}. Go on with the release "
        "that began the load."
    )
