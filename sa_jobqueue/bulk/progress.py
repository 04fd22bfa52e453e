"""How far a load is."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from .log import INSERTED, Head, Log
from .source import metadata_of
from .states import BLOCKED, STARTING, LoadState, after_kill


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a load is.

    Attributes:
        state: the load's state.
        divided: how many batches the redo log has.
        inserted: how many of them are in the table.
        batches: how many batches there are in all; None: nobody knows yet.
        batch_size: rows of a batch; the last may have fewer.
        total: rows in all; None: nobody knows yet.
    """

    state: LoadState
    divided: int = 0
    inserted: int = 0
    batches: int | None = None
    batch_size: int = 1
    total: int | None = None

    @property
    def rows(self) -> int:
        """How many rows are in the table, to within the last batch."""
        rows = self.inserted * self.batch_size
        return rows if self.total is None else min(rows, self.total)

    def __str__(self) -> str:
        of_batches = "" if self.batches is None else f" of {self.batches:,}"
        # The last batch may have fewer rows.
        at_most = "at most " if self.total is None and self.batches and self.inserted else ""
        rows = f"{at_most}{self.rows:,} rows"
        return f"{self.state}: {self.inserted:,}{of_batches} batches, {rows} inserted"


def progress_of(log: Log, state: LoadState, head: Head) -> Progress:
    """Return how far a load is whose log has been read."""
    metadata = metadata_of(head)
    return Progress(
        state=state,
        divided=log.redo_count,
        inserted=log.marks.count(INSERTED),
        batches=log.redo_count if log.redo_ended else metadata.batches,
        batch_size=metadata.batch_size,
        total=metadata.total,
    )


def status_of(log: Log) -> Progress:
    """Read from the log how far its load is, also while a manager works with it.

    Raises:
        BrokenLog: the log cannot be read.
    """
    log, head, state = peek_at(log)
    if head is None or head.cleaning:
        return Progress(state=state)
    return progress_of(log, state, head)


def peek_at(log: Log) -> tuple[Log, Head | None, LoadState]:
    """Read a copy of the log: another thread may be working with this one."""
    log = copy(log)
    head, busy = log.peek()
    if head is None:
        return log, None, STARTING
    return log, head, head.state if busy else after_kill(head.state)


def way_on(log: Log, head: Head | None) -> str:
    """Describe how far an interrupted load is, and which calls go on with it."""
    if head is None:
        return "it has not begun."
    state = after_kill(head.state)
    calls = (
        "run() goes on, rollback() deletes what the load has inserted"
        if state is BLOCKED
        else "run() begins again; no row is in the table"
    )
    return f"{progress_of(log, state, head)}; {calls}."
