"""What the two logs have in common: FileLog keeps a load in a file, DatabaseLog in two tables.

The redo log says what the batches are; an entry is durable before its batch is
touched. The undo log says what became of them: the last mark of each batch counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from ..errors import BrokenLog, LockTimeout
from .states import LoadState

#: The marks of a batch. The two in doubt are written before the batch's transaction
#: commits: after a crash nobody knows whether it did. All other marks are certain.
NOTHING, INSERT_IN_DOUBT, INSERTED, REMOVAL_IN_DOUBT, REMOVED = range(5)

#: The mark that is written before the commit that leads to INSERTED or REMOVED.
IN_DOUBT = {INSERTED: INSERT_IN_DOUBT, REMOVED: REMOVAL_IN_DOUBT}

#: The format of both logs.
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a log knows about its load as a whole.

    Attributes:
        id: unique for each load.
        state: as it is stored.
        metadata: what the source's `metadata()` returned, as JSON.
    """

    id: str
    state: LoadState
    metadata: Mapping[str, Any]


class Log(ABC):
    """Keep what a load is about to do, and what it has done; a FileLog or a DatabaseLog.

    Between :meth:`open` and :meth:`close` nobody else writes to it.

    Attributes:
        name: the log's folder or name.
        marks: the mark of every batch of the redo log, as :meth:`read` found it or as
            it was changed since.
        redo_ended: whether the last batch is among them.
    """

    name: str
    marks: bytearray
    redo_ended: bool

    def open(self) -> Head | None:
        """Lock the log for this manager and read it; None: there is no load in it yet.

        Raises:
            LockTimeout: another manager has it.
            BrokenLog: it cannot be read, or it is not a log.
        """
        if not self.lock():
            raise LockTimeout(f"Another manager works with the log {self.name!r}.")
        try:
            return self.read()
        except BaseException:
            self.close()
            raise

    def peek(self) -> tuple[Head | None, bool]:
        """Read the log without locking it; tell whether a manager has it locked."""
        busy = self.is_locked()  # asked twice: a call that ends or begins meanwhile counts
        head = self.read()
        return head, busy or self.is_locked()

    @abstractmethod
    def lock(self) -> bool:
        """Lock the log; tell whether nobody else had it."""

    @abstractmethod
    def is_locked(self) -> bool:
        """Tell whether somebody has the log locked."""

    @abstractmethod
    def close(self) -> None:
        """Unlock the log; a log that is not open is left as it is."""

    @abstractmethod
    def read(self) -> Head | None:
        """Read the head, :attr:`marks` and :attr:`redo_ended`."""

    @abstractmethod
    def begin(self, head: Head) -> None:
        """Begin a load durably, without batches; those of an earlier beginning are forgotten."""

    @abstractmethod
    def store(self, head: Head) -> None:
        """Store a changed head durably."""

    @abstractmethod
    def clear(self) -> None:
        """Delete the load in one step."""

    # -- redo -----------------------------------------------------------

    @abstractmethod
    def add_redo(self, batch: Any) -> None:
        """Add a batch durably."""

    @abstractmethod
    def end_redo(self) -> None:
        """Note durably that the batch added last is the last of the load."""

    @abstractmethod
    def redo(self, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Read batches lazily, in the order of these numbers, up or down."""

    # -- undo -----------------------------------------------------------

    def shares_transactions(self, engine: Engine) -> bool:
        """Tell whether a mark can be written in a transaction of this engine."""
        return False

    @abstractmethod
    def mark(
        self, number: int, mark: int, *, kept: Any = None, connection: Connection | None = None
    ) -> None:
        """Write a batch's mark; one in doubt is durable when this returns.

        Args:
            kept: what the source needs when it takes the batch back, as JSON; None
                leaves what was kept before.
            connection: write in this connection's transaction.
        """

    @abstractmethod
    def kept(self, number: int) -> Any:
        """Return what was kept for a batch; None: nothing."""


@dataclass(frozen=True)
class Entry:
    """The entry of one batch in the undo log.

    Attributes:
        before: the batch's mark when work on it began.
    """

    log: Log
    number: int
    before: int

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if a killed process committed this batch."""
        return self.before in IN_DOUBT.values()

    @property
    def kept(self) -> Any:
        """What an earlier process kept for the batch."""
        return None if self.before == NOTHING else self.log.kept(self.number)

    def before_commit(
        self, mark: int, connection: Connection | None = None, kept: Any = None
    ) -> None:
        """Note that the batch is about to be committed, in its transaction where possible."""
        if connection is not None and self.log.shares_transactions(connection.engine):
            self.log.mark(self.number, mark, kept=kept, connection=connection)
        else:
            self._mark(IN_DOUBT[mark], kept)

    def after_commit(self, mark: int) -> None:
        """Note that the batch is committed."""
        if self.log.marks[self.number] == IN_DOUBT[mark]:
            self._mark(mark)
        self.log.marks[self.number] = mark

    def not_committed(self) -> None:
        """Note that the batch is as it was when work on it began."""
        if self.log.marks[self.number] != self.before:
            self._mark(self.before)

    def _mark(self, mark: int, kept: Any = None) -> None:
        self.log.mark(self.number, mark, kept=kept)
        self.log.marks[self.number] = mark


def check_version(log: str, version: Any) -> None:
    """Refuse a log that another release has written.

    Raises:
        BrokenLog: the log has another format.
    """
    if version != VERSION:
        raise BrokenLog(
            f"{log} has the format {version}; this release reads {VERSION}. Go on with the release "
            "that began the load."
        )
