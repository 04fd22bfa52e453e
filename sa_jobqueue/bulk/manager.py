"""The calls of a bulk load, each of which changes its state.

``run()`` does all; in steps: ``prepare()``, ``insert()``, and after a crash ``restore()``
or ``rollback()``. A call that does not fit the state raises InvalidState, which names the
calls that fit. docs/bulk.md has the diagram.

Limits: the log is on one machine's disk (FileLog) or in the loaded database (DatabaseLog).

A source divides what is loaded into batches, and writes each::

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

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from ..errors import ArgumentError, LoadStopped
from .log import (
    INSERTED,
    NOTHING,
    NOTHING_TO_DO,
    REMOVED,
    TRANSITIONS,
    Entry,
    Head,
    LoadState,
    Log,
    check_call,
)

B = TypeVar("B")


S = TypeVar("S", bound="Source[Any]")

#: Batches, each with its number.
Numbered: TypeAlias = Generator[tuple[int, Any], None, None]

log = logging.getLogger("sa_jobqueue.bulk")

#: How long a call waits for the server to end what a killed process began.
WAIT = timedelta(seconds=60)


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


class BulkLoad(Generic[S]):
    """One load: a source, and the log that knows how far it is.

    Args:
        source: what is loaded; after a crash, the same source again.
        log: a log for this load alone.
        progress: called after each batch.
        wait: how long to wait until the server has ended what a killed process began.
    """

    def __init__(
        self,
        source: S,
        log: Log,
        *,
        progress: Callable[[Progress], object] | None = None,
        wait: timedelta = WAIT,
    ) -> None:
        self.source = source
        self.log = log
        self.progress = progress
        self.wait = wait
        self._head: Head | None = None
        self._finished = False
        self._stopping = threading.Event()

    # -- calls ----------------------------------------------------------

    def prepare(self) -> None:
        """Divide the source, and write the redo log; no row is inserted.

        Raises:
            InvalidState: the state is neither STARTING nor UNPREPARED.
            LockTimeout: another manager works with this log.
            LoadStopped: :meth:`stop` was called.
        """
        with self._called("prepare"):
            self._enter(LoadState.PREPARING)
            with closing(self._divide()) as batches:
                for _ in batches:
                    self._report()

    def insert(self) -> None:
        """Insert all batches of a prepared load; ends CLEANING.

        Raises:
            InvalidState: the state is not PREPARING.
            SourceChanged, LockTimeout, LoadStopped: as in :meth:`run`.
        """
        self._insert_all("insert")

    def restore(self) -> None:
        """Go on after a crash: insert what is not in the table yet; ends CLEANING.

        Does nothing where there is nothing to restore.

        Raises:
            SourceChanged, LockTimeout, LoadStopped: as in :meth:`run`.
        """
        self._insert_all("restore")

    def run(self) -> None:
        """Do what is left to do, from any state of the load; ends CLEANING.

        Raises:
            InvalidState: the load was rolled back or cleaned: call clean(), and begin a
                new load.
            SourceChanged: this is not the source that the load began with.
            LockTimeout: another manager works with this log, or the server still
                works for the killed process.
            LoadStopped: :meth:`stop` was called.
        """
        self._insert_all("run")

    def rollback(self) -> None:
        """Delete what this load inserted, in any state but FINISHED; ends CANCELLED.

        Raises:
            InvalidState: the state is FINISHED.
            LockTimeout, LoadStopped: as in :meth:`run`.
        """
        with self._called("rollback") as state:
            if state in (LoadState.BLOCKED, LoadState.CLEANING):
                self._enter(LoadState.BLOCKED)
                self._write(REMOVED, self._to_roll_back())
            if state is not LoadState.CANCELLED:
                self._enter(LoadState.CANCELLED)

    def clean(self) -> None:
        """Delete the log of a load that is complete or rolled back; ends FINISHED.

        Raises:
            InvalidState: the state is neither CLEANING nor CANCELLED.
        """
        with self._called("clean"):
            self.log.clear()
            self._finished = True

    def stop(self) -> None:
        """Make the call under way raise LoadStopped after its current batch."""
        self._stopping.set()

    @property
    def state(self) -> LoadState:
        """The load's state, read from the log."""
        return self.status().state

    def status(self) -> Progress:
        """Return how far the load is, also while another thread or process works for it."""
        return Progress(state=LoadState.FINISHED) if self._finished else status_of(self.log)

    # -- a call ---------------------------------------------------------

    @contextmanager
    def _called(self, verb: str) -> Iterator[LoadState]:
        """Open the log for one call; a call that fails leaves the load as if killed."""
        if self._finished:
            check_call(verb, LoadState.FINISHED)
            yield LoadState.FINISHED
            return
        self._head = self.log.open()
        try:
            state = _state_of(self.log, self._head)
            check_call(verb, state)
            if self._head is not None and state is not LoadState.UNPREPARED:
                self.source.resume(Metadata(**self._head.metadata))
            try:
                yield state
            except BaseException as error:
                error.add_note(f"{verb}() of a bulk load: {self._way_on()}")
                raise
        finally:
            self._stopping.clear()
            self.log.close()

    def _enter(self, state: LoadState) -> None:
        """Store a state; begin the log, or begin it again where it was never complete."""
        if self._head is None or _state_of(self.log, self._head) is LoadState.UNPREPARED:
            metadata = asdict(self.source.metadata())
            self._head = Head(id=uuid.uuid4().hex, state=state, metadata=metadata)
            self.log.store(self._head, begins=True)
        else:
            self._head = replace(self._head, state=state)
            self.log.store(self._head)
        log.debug("%s: %s", self.log.name, state)

    def _insert_all(self, verb: str) -> None:
        with self._called(verb) as state:
            if state in NOTHING_TO_DO.get(verb, ()):
                return
            self._enter(LoadState.INSERTING)
            self._write(INSERTED, self._to_insert())
            self.source.finish(batch for _, batch in self._logged(range(len(self.log.marks))))
            self._enter(LoadState.CLEANING)

    def _write(self, mark: int, batches: Numbered) -> None:
        assert self._head is not None
        with closing(batches), self.source.open_writer(self._head.id, self.wait) as write:
            # A killed process's last COMMIT may have come after the log was opened.
            self.log.read()
            for number, batch in batches:
                write(batch, Entry(self.log, number, self.log.marks[number], mark))
                self._report()

    # -- batches --------------------------------------------------------

    def _to_insert(self) -> Numbered:
        """Yield logged batches that are not in the table, then batches that are not logged yet."""
        for number, batch in self._logged(self._marked_other_than(INSERTED)):
            yield number, self.source.refill(batch)
        yield from self._divide()

    def _to_roll_back(self) -> Numbered:
        """Yield the batches that are in the table or may be; the last first.

        Its rows may refer to those of earlier batches.
        """
        yield from self._logged(self._marked_other_than(NOTHING, REMOVED)[::-1])

    def _marked_other_than(self, *marks: int) -> list[int]:
        return [number for number, mark in enumerate(self.log.marks) if mark not in marks]

    def _logged(self, numbers: Iterable[int]) -> Numbered:
        """Yield batches of the redo log, without the rows, which are not logged."""
        for number in numbers:
            self._check_stop()
            yield number, self.source.decode(self.log.redo(number))

    def _divide(self) -> Numbered:
        """Divide the source after the last logged batch; log each batch before it is yielded."""
        if self.log.redo_ended:
            return
        count = len(self.log.marks)
        rest = self.source.divide_after(count) if count else self.source.divide()
        for number, batch in enumerate(rest, count):
            self._check_stop()
            self.log.add_redo(self.source.encode(batch))
            yield number, batch
        self.log.end_redo()

    # -- meanwhile ------------------------------------------------------

    def _report(self) -> None:
        if self.progress is not None:
            assert self._head is not None
            self.progress(_progress_of(self.log, self._head, self._head.state))

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise LoadStopped(f"Stopped. {self._way_on()}")

    def _way_on(self) -> str:
        """Describe how far an interrupted load is, and which calls go on with it."""
        if self._head is None:
            return "it has not begun."
        state = _state_of(self.log, self._head)
        calls = (
            "run() goes on, rollback() deletes what the load has inserted"
            if state is LoadState.BLOCKED
            else "run() begins again; no row is in the table"
        )
        return f"{_progress_of(self.log, self._head, state)}; {calls}."


def status_of(log: Log) -> Progress:
    """Read from the log how far its load is, also while a manager works with it.

    Raises:
        BrokenLog: the log cannot be read.
    """
    log = copy(log)  # another thread may be working with it
    head, busy = log.peek()
    if head is None:
        return Progress(state=LoadState.STARTING)
    return _progress_of(log, head, head.state if busy else _state_of(log, head))


def _state_of(log: Log, head: Head | None) -> LoadState:
    """Return the state of a load for which no process works."""
    if head is None:
        return LoadState.STARTING
    if head.state is LoadState.PREPARING and log.redo_ended:
        return LoadState.PREPARING  # it is complete
    return TRANSITIONS["killed"].get(head.state, head.state)


def _progress_of(log: Log, head: Head, state: LoadState) -> Progress:
    metadata = Metadata(**head.metadata)
    of_total = None if metadata.total is None else -(-metadata.total // metadata.batch_size)
    return Progress(
        state=state,
        divided=len(log.marks),
        inserted=log.marks.count(INSERTED),
        batches=len(log.marks) if log.redo_ended else of_total,
        batch_size=metadata.batch_size,
        total=metadata.total,
    )


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


#: Brings a batch in, or takes it back, as the mark of its entry in the log says; writes the entry.
Write: TypeAlias = Callable[[B, Entry], None]


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
    def open_writer(self, load: str, wait: timedelta) -> AbstractContextManager[Write[B]]:
        """Return what writes batches, once nothing of a killed process works for the load any more.

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

    def open_writer(self, load: str, wait: timedelta) -> AbstractContextManager[Write[B]]:
        """Write log entries around :meth:`update` and :meth:`rollback`."""
        return nullcontext(self._write)

    def _write(self, batch: B, entry: Entry) -> None:
        entry.before_commit()
        if entry.mark == INSERTED:
            self.update(batch)
        else:
            self.rollback(batch)
        entry.after_commit()
