"""What the two logs have in common: FileLog keeps a load in a file, DatabaseLog in a table.

A log is a list of entries in JSON, in the order of what happened:

- ``{"load": ..}`` is the load's head: its state, and what its source is.
- ``{"redo": ..}`` says what a batch is; it is durable before the batch is touched.
- ``{"redo_ended": true}``: there are no more batches.
- ``{"batch": .., "mark": ..}`` is the undo log: what became of a batch. The last one counts.

Its states, and which call leads from which state to which: :data:`TRANSITIONS` is the diagram of
``docs/bulk.md``; a test compares the two. ``killed`` is not a call: it leads to the state in which
a load is found once its process is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine

from ..errors import BrokenLog, InvalidState, LockTimeout

#: The marks of a batch. The two in doubt are written before the batch's transaction
#: commits: after a crash nobody knows whether it did. All other marks are certain.
NOTHING, INSERT_IN_DOUBT, INSERTED, REMOVAL_IN_DOUBT, REMOVED = range(5)

#: How each mark is written.
_MARKS = ("nothing", "inserting", "inserted", "removing", "removed")

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # -- what a subclass provides ---------------------------------------

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
    def entries(self) -> Iterator[tuple[int, Any]]:
        """Read all entries, each with its place; None is a batch, which is long and not read."""

    @abstractmethod
    def entry_at(self, place: int) -> Any:
        """Read one entry."""

    @abstractmethod
    def append(self, entry: Any, *, durable: bool, connection: Connection | None = None) -> int:
        """Write an entry; return its place.

        Args:
            durable: it shall survive a power cut. Otherwise it survives the end of this
                process.
            connection: write in this connection's transaction.
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete the load in one step."""

    def shares_transactions(self, engine: Engine) -> bool:
        """Tell whether a mark can be written in a transaction of this engine."""
        return False

    # -- the whole ------------------------------------------------------

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

    def read(self) -> Head | None:
        """Read the head, ``marks`` and ``redo_ended``."""
        self._forget()
        head: Head | None = None
        for place, entry in self.entries():
            if entry is None:
                self._add(place)
            elif "load" in entry:
                head = self._head_of(**entry["load"])
                if entry["begins"]:
                    self._forget()
            elif "batch" in entry:
                self.marks[entry["batch"]] = _MARKS.index(entry["mark"])
                if "kept" in entry:
                    self._kept[entry["batch"]] = place
            else:
                self.redo_ended = True
        return head

    def store(self, head: Head, *, begins: bool = False) -> None:
        """Store a head durably; a load that begins forgets its batches."""
        self.append({"load": {"version": VERSION, **asdict(head)}, "begins": begins}, durable=True)
        if begins:
            self._forget()

    def _forget(self) -> None:
        self.marks, self.redo_ended = bytearray(), False
        self._redo, self._kept = array("Q"), dict[int, int]()

    def _add(self, place: int) -> None:
        self._redo.append(place)
        self.marks.append(NOTHING)

    def _head_of(self, *, version: int, state: str, **values: Any) -> Head:
        if version != VERSION:
            raise BrokenLog(
                f"The log {self.name!r} has the format {version}; this release reads {VERSION}. "
                "Go on with the release that began the load."
            )
        return Head(state=LoadState(state), **values)

    # -- redo and undo --------------------------------------------------

    def add_redo(self, batch: Any) -> None:
        """Add a batch durably."""
        self._add(self.append({"redo": batch}, durable=True))

    def end_redo(self) -> None:
        """Note durably that the batch added last is the last of the load."""
        self.append({"redo_ended": True}, durable=True)
        self.redo_ended = True

    def redo(self, number: int) -> Any:
        """Read a batch."""
        return self.entry_at(self._redo[number])["redo"]

    def mark(
        self, number: int, mark: int, *, kept: Any = None, connection: Connection | None = None
    ) -> None:
        """Write a batch's mark; one in doubt is durable when this returns.

        Args:
            kept: what the source needs when it takes the batch back, as JSON; None
                leaves what was kept before.
            connection: write in this connection's transaction.
        """
        entry = {"batch": number, "mark": _MARKS[mark]}
        if kept is not None:
            entry["kept"] = kept
        # A certain mark becomes durable with the next entry that is.
        self.append(entry, durable=mark in IN_DOUBT.values(), connection=connection)

    def kept(self, number: int) -> Any:
        """Return what was kept for a batch when the log was read; None: nothing."""
        return self.entry_at(self._kept[number])["kept"] if number in self._kept else None


@dataclass(frozen=True)
class Entry:
    """The entry of one batch in the undo log.

    Attributes:
        before: the batch's mark when work on it began.
        mark: its mark after the work: INSERTED or REMOVED.
    """

    log: Log
    number: int
    before: int
    mark: int

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if a killed process committed this batch."""
        return self.before in IN_DOUBT.values()

    def before_commit(self, connection: Connection | None = None, kept: Any = None) -> None:
        """Note that the batch is about to be committed, in its transaction where possible."""
        if connection is not None and self.log.shares_transactions(connection.engine):
            self.log.mark(self.number, self.mark, kept=kept, connection=connection)
        else:
            self._set(IN_DOUBT[self.mark], kept)

    def after_commit(self) -> None:
        """Note that the batch is committed."""
        if self.log.marks[self.number] == IN_DOUBT[self.mark]:
            self._set(self.mark)
        self.log.marks[self.number] = self.mark

    def not_committed(self) -> None:
        """Note that the batch is as it was when work on it began."""
        if self.log.marks[self.number] != self.before:
            self._set(self.before)

    def _set(self, mark: int, kept: Any = None) -> None:
        self.log.mark(self.number, mark, kept=kept)
        self.log.marks[self.number] = mark


class LoadState(StrEnum):
    """The state of a load.

    STARTING: there is no log yet; this state is never stored.
    PREPARING: the redo log is being written, or is complete; no row is in the table.
    INSERTING: some batches may be in the table.
    UNPREPARED: the process ended while it wrote the redo log; no row is in the table.
    BLOCKED: the process ended while INSERTING, or during a rollback.
    CANCELLED: the rollback is done: none of the load's rows is in the table.
    CLEANING: all rows are in the table; the logs are kept.
    FINISHED: the logs are deleted; this state is never stored.
    """

    STARTING = "STARTING"
    PREPARING = "PREPARING"
    INSERTING = "INSERTING"
    UNPREPARED = "UNPREPARED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"
    CLEANING = "CLEANING"
    FINISHED = "FINISHED"


(STARTING, PREPARING, INSERTING, UNPREPARED, BLOCKED, CANCELLED, CLEANING, FINISHED) = LoadState

TRANSITIONS: Mapping[str, Mapping[LoadState, LoadState]] = {
    "prepare": {STARTING: PREPARING, UNPREPARED: PREPARING},
    "insert": {PREPARING: INSERTING, INSERTING: CLEANING},
    "restore": {UNPREPARED: INSERTING, BLOCKED: INSERTING, INSERTING: CLEANING},
    "run": {
        STARTING: INSERTING,
        PREPARING: INSERTING,
        UNPREPARED: INSERTING,
        BLOCKED: INSERTING,
        INSERTING: CLEANING,
    },
    "rollback": {
        STARTING: CANCELLED,
        PREPARING: CANCELLED,
        UNPREPARED: CANCELLED,
        CLEANING: BLOCKED,
        BLOCKED: CANCELLED,
    },
    "clean": {CLEANING: FINISHED, CANCELLED: FINISHED},
    "killed": {PREPARING: UNPREPARED, INSERTING: BLOCKED},
}

#: The states in which a call has nothing to do, and does nothing.
NOTHING_TO_DO: Mapping[str, frozenset[LoadState]] = {
    "restore": frozenset({STARTING, PREPARING, CANCELLED, CLEANING, FINISHED}),
    "rollback": frozenset({CANCELLED}),
    "run": frozenset({CLEANING}),
}


def check_call(verb: str, state: LoadState) -> None:
    """Refuse a call that does not fit the state.

    Raises:
        InvalidState: names the calls that fit.
    """
    calls = [call for call, changes in TRANSITIONS.items() if state in changes and call != "killed"]
    if verb not in calls and state not in NOTHING_TO_DO.get(verb, ()):
        raise InvalidState(verb, state, sorted(calls))
