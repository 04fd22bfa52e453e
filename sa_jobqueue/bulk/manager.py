"""The calls of a bulk load, each of which changes its state.

``run()`` does all; in steps: ``prepare()``, ``insert()``, and after a crash ``restore()``
or ``rollback()``. A call that does not fit the state raises InvalidState, which names the
calls that fit. docs/bulk.md has the diagram.

Limits: the log is on one machine's disk (FileLog) or in the loaded database (DatabaseLog).
"""

from __future__ import annotations

import logging
import signal
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from ..errors import ArgumentError, InvalidState, LoadStopped
from ..process.signals import first_signal_stops, raises_keyboard_interrupt
from .batches import Batches, Write, write_batches
from .log import Entry, Head, Log
from .progress import Progress, peek_at, progress_of, status_of, way_on
from .source import DivisibleSource, metadata_of
from .states import (
    BLOCKED,
    CANCELLED,
    CLEANING,
    FINISHED,
    INSERTING,
    NOTHING_TO_DO,
    PREPARING,
    RUN_CALLS,
    STARTING,
    UNPREPARED,
    LoadState,
    after_kill,
    calls_in,
    check_call,
    check_change,
)

S = TypeVar("S", bound=DivisibleSource[Any])

log = logging.getLogger("sa_jobqueue.bulk")

#: How long restore and rollback wait for the server to end a killed process's connections.
WAIT = timedelta(seconds=60)


class BulkLoad(Generic[S]):
    """One load: a source, and the log that knows how far it is.

    Args:
        source: what is loaded; after a crash, the same source again.
        log: a log for this load alone.
        workers: how many connections work in parallel.
        progress: called after each batch, from several threads but never from two at
            once.
        wait: how long to wait until the server has ended what a killed process began.

    Raises:
        ArgumentError: `workers` is below 1, or `log` is not a Log.
    """

    def __init__(
        self,
        source: S,
        log: Log,
        *,
        workers: int = 1,
        progress: Callable[[Progress], object] | None = None,
        wait: timedelta = WAIT,
    ) -> None:
        if workers < 1:
            raise ArgumentError(f"a load has at least one worker: {workers!r}")
        if not isinstance(log, Log):
            raise ArgumentError(
                f"a load's log is an object like FileLog({str(log)!r}) or DatabaseLog(engine), "
                f"not {log!r}"
            )
        self.source = source
        self.log = log
        self.workers = workers
        self.progress = progress
        self.wait = wait
        self._head: Head | None = None
        self._finished = False
        self._calling = threading.Lock()
        self._reporting = threading.Lock()
        self._stopping = threading.Event()

    # -- calls ----------------------------------------------------------

    def prepare(self) -> None:
        """Divide the source, and write the redo log; no row is inserted.

        Raises:
            InvalidState: the state is neither STARTING nor UNPREPARED.
            LockTimeout: another manager works with this log.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("prepare"):
            self._begin("prepare", PREPARING)
            for _ in self._batches.newly_divided():
                self._report()

    def insert(self) -> None:
        """Insert all batches of a prepared load; ends CLEANING.

        Raises:
            InvalidState: the state is not PREPARING.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("insert"):
            self._change_state("insert", INSERTING)
            self._insert("insert")

    def restore(self) -> None:
        """Go on after a crash: insert what is not in the table yet; ends CLEANING.

        Does nothing where there is nothing to restore.

        Raises:
            SourceChanged: this is not the source that the load began with.
            LockTimeout: another manager works with this log, or the server still
                works for the killed process.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("restore") as state:
            if state in NOTHING_TO_DO["restore"]:
                return
            self._wait_for_killed()
            self._begin("restore", INSERTING)
            self._insert("restore")

    def rollback(self) -> None:
        """Delete what this load inserted, in any state but FINISHED; ends CANCELLED.

        Raises:
            InvalidState: the state is FINISHED, or cleaning has begun.
            LockTimeout, LoadStopped: as in :meth:`restore`.
        """
        with self._call("rollback") as state:
            if state is CANCELLED:
                return
            if state in (BLOCKED, CLEANING):
                self._wait_for_killed()
                self._change_state("rollback", BLOCKED)
                self._write(
                    self._batches.to_roll_back(),
                    lambda writer, batch, entry: writer.rollback(batch, entry),
                )
            if self._head is None:
                self._create_log(CANCELLED)
            else:
                self._change_state("rollback", CANCELLED)

    def clean(self) -> None:
        """Delete the logs of a load that is complete or rolled back; ends FINISHED.

        Raises:
            InvalidState: the state is neither CLEANING nor CANCELLED.
        """
        with self._call("clean", even_cleaning=True) as state:
            check_change("clean", state, FINISHED)
            assert self._head is not None
            # From here on only clean() is possible, also after a crash.
            self.log.store(replace(self._head, cleaning=True))
            self.log.clear()
            self._head, self._finished = None, True

    def run(self) -> None:
        """Do what is left to do, from any state of the load; ends CLEANING.

        In CLEANING it does nothing, except to go on with a clean() that was killed.

        Raises:
            InvalidState: the load was rolled back or cleaned: call clean(), and begin a
                new load.
            SourceChanged, LockTimeout, LoadStopped: as in :meth:`restore`.
        """
        state, cleaning = self._peek()
        if cleaning:
            return self.clean()
        if state in RUN_CALLS:
            return getattr(self, RUN_CALLS[state])()  # type: ignore[no-any-return]  # None
        with self._call("run") as state:
            if state is STARTING:
                self._begin("run", INSERTING)
                self._insert("run")
            elif state not in NOTHING_TO_DO["run"]:  # the state has changed since we peeked
                raise InvalidState("run", state, calls_in(state))
        return None

    def stop(self) -> None:
        """Make the call under way raise LoadStopped after its current batches."""
        self._stopping.set()

    @property
    def state(self) -> LoadState:
        """The load's state, read from the log."""
        return self.status().state

    def status(self) -> Progress:
        """Return how far the load is, also while another process works for it."""
        if self._finished:
            return Progress(state=FINISHED)
        head = self._head
        if head is None:
            return status_of(self.log)
        return progress_of(self.log, head.state, head)

    def close(self) -> None:
        """Unlock a log that prepare() has kept open for insert()."""
        self._head = None
        self.log.close()

    def __enter__(self) -> BulkLoad[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Make SIGTERM and SIGINT, or the given signals, stop the load; main thread only.

        Ctrl-C stops the load without this too, unless SIGINT has a handler already.
        """
        return first_signal_stops(self.stop, *(signals or (signal.SIGTERM, signal.SIGINT)))

    # -- a call ---------------------------------------------------------

    @contextmanager
    def _call(self, verb: str, *, even_cleaning: bool = False) -> Iterator[LoadState]:
        """Open the log for one call; keep it open where insert() is still to come."""
        if not self._calling.acquire(blocking=False):
            raise InvalidState(verb, INSERTING, calls_in(INSERTING))
        try:
            state = self._open(verb, even_cleaning)
            with self._left_as_killed(verb):
                yield state
        finally:
            self._stopping.clear()
            if self._head is None or self._head.state is not PREPARING:
                self.close()
            self._calling.release()

    def _open(self, verb: str, even_cleaning: bool) -> LoadState:
        if self._finished:
            check_call(verb, FINISHED)
            return FINISHED
        if self._head is None:
            self._head = self._read_head()
        state = self._head.state if self._head is not None else STARTING
        check_call(verb, state)
        if self._head is not None and self._head.cleaning and not even_cleaning:
            raise InvalidState(verb, f"{state}, with part of its logs gone", ["clean"])
        return state

    def _read_head(self) -> Head | None:
        head = self.log.open()
        if head is None:
            return None
        self.source.resume(metadata_of(head))
        return replace(head, state=after_kill(head.state))

    @contextmanager
    def _left_as_killed(self, verb: str) -> Iterator[None]:
        """Leave the load of a call that fails as if its process had been killed."""
        catching = (
            first_signal_stops(self.stop, signal.SIGINT)
            if raises_keyboard_interrupt()
            else nullcontext()
        )
        try:
            with catching:
                yield
        except BaseException as error:
            if not isinstance(error, InvalidState | LoadStopped):
                error.add_note(f"{verb}() of a bulk load: {way_on(self.log, self._head)}")
            self._head = None
            raise

    def _peek(self) -> tuple[LoadState, bool]:
        """Return the state, and whether cleaning has begun."""
        if self._finished or self._head is not None:
            return self.state, False
        _, head, state = peek_at(self.log)
        return state, head is not None and head.cleaning

    # -- states ---------------------------------------------------------

    def _begin(self, verb: str, state: LoadState) -> None:
        """Change to a state in which the redo log is written or continued."""
        if self._head is None:
            check_change(verb, STARTING, state)
            self._create_log(state)
            return
        if self._head.state is UNPREPARED:
            self.log.clear_redo()
            metadata = self.source.metadata()
            self.source.resume(metadata)  # not that of the rows before they were corrected
            self._head = replace(self._head, metadata=asdict(metadata))
        self._change_state(verb, state)

    def _create_log(self, state: LoadState) -> None:
        head = Head(
            id=uuid.uuid4().hex,
            state=state,
            metadata=asdict(self.source.metadata()),
            workers=self.workers,
        )
        self.log.begin(head)
        self._head = head

    def _change_state(self, verb: str, state: LoadState) -> None:
        head = self._head
        assert head is not None
        if head.state is not state:
            check_change(verb, head.state, state)
        self._head = replace(head, state=state, workers=max(head.workers, self.workers))
        self.log.store(self._head)
        log.debug("%s: %s", self.log.name, state)

    # -- batches --------------------------------------------------------

    @property
    def _batches(self) -> Batches:
        # Not an attribute: in a cycle of references, open generators are closed in any order.
        return Batches(self.source, self.log, self._check_stop)

    def _insert(self, verb: str) -> None:
        self._write(
            self._batches.to_insert(), lambda writer, batch, entry: writer.update(batch, entry)
        )
        self.source.finish(batch for _, batch in self._batches.logged())
        self._change_state(verb, CLEANING)

    def _write(self, batches: Generator[tuple[Entry, Any], None, None], write: Write) -> None:
        assert self._head is not None
        write_batches(
            self.source,
            batches,
            write,
            load=self._head.id,
            workers=self.workers,
            after_each=self._report,
        )

    def _wait_for_killed(self) -> None:
        assert self._head is not None
        self.source.wait_for_slots(self._head.id, self._head.workers, self.wait)

    def _report(self) -> None:
        if self.progress is not None:
            with self._reporting:
                self.progress(self.status())

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise LoadStopped(f"Stopped. {way_on(self.log, self._head)}")
