"""How far a load is."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from .log import INSERTED, Log
from .source import Metadata
from .states import BLOCKED, LoadState, after_kill


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a load is.

    Attributes:
        state: where it stands.
        divided: how many batches the redo log has.
        inserted: how many of them are in the table.
        batches: how many there are in all; None: nobody knows yet.
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
        # The last batch may have fewer.
        at_most = "at most " if self.total is None and self.batches and self.inserted else ""
        rows = f"{at_most}{self.rows:,} rows"
        return f"{self.state}: {self.inserted:,}{of_batches} batches, {rows} inserted"


def progress_of(log: Log, state: LoadState, metadata: Metadata | None) -> Progress:
    """Read from an open log how far its load is."""
    if metadata is None:
        return Progress(state=state)
    return Progress(
        state=state,
        divided=log.redo_count,
        inserted=log.marks.count(INSERTED),
        batches=log.redo_count if log.redo_ended else metadata.batches,
        batch_size=metadata.batch_size,
        total=metadata.total,
    )


def status_of(log: Log) -> Progress:
    """Look how far a load is, beside whoever works for it.

    Raises:
        BrokenLog: the log cannot be read.
    """
    log = copy(log)  # it may be another thread that works with this one
    head, busy = log.peek()
    if head is None:
        return Progress(state=LoadState.STARTING)
    state = head.state if busy else after_kill(head.state)
    if head.cleaning:
        return Progress(state=state)
    return progress_of(log, state, Metadata(**head.metadata))


def ways_on(state: LoadState) -> str:
    """Say how a load that is not through goes on."""
    if state is BLOCKED:
        return "run() goes on, rollback() takes back what is in the table"
    return "run() begins again; no row is in the table"
