"""A bulk load that survives a crash: run it again, and it goes on; or take it back.

::

    load = BulkLoad(InsertSource(engine, Email, rows), FileLog("loads/may"), workers=4)
    load.run()          # killed? the same again, with the same rows
    load.clean()        # the logs are not needed any more

In steps: ``prepare()``, ``insert()``, and after a crash ``restore()`` or
``rollback()``. A call that does not fit the state raises InvalidState, which names
those that do. docs/bulk.md has the diagram.

Limits: a log on one machine's disk (FileLog) or in the loaded database (DatabaseLog).
"""

from __future__ import annotations

import logging
import signal
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from ..errors import ArgumentError, InvalidState, LoadStopped
from ..worker.signals import ctrl_c_is_ours, stopping_gently
from .batches import Batches
from .crew import work_off
from .log import Entry, Head, Log
from .progress import Progress, progress_of, status_of, ways_on
from .source import DivisibleSource, Hand, Metadata
from .states import (
    BLOCKED,
    CANCELLED,
    CLEANING,
    FINISHED,
    IDLE,
    INSERTING,
    PREPARING,
    RUNS,
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

#: How long restore and rollback wait for the server to end what a killed process left.
WAIT = timedelta(seconds=60)


class BulkLoad(Generic[S]):
    """One load: a source, and the log that knows how far it is.

    Args:
        source: what is loaded; after a crash, the same again.
        log: this load's alone.
        workers: how many connections work in parallel.
        progress: called after each batch, from several threads but one at a time.
        wait: how long to wait for the server to end what a killed process began.

    Raises:
        ArgumentError: fewer than one worker, or a log that is none.
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
                f"a load's log is one like FileLog({str(log)!r}), or DatabaseLog(engine): {log!r}"
            )
        self.source = source
        self.log = log
        self.workers = workers
        self.progress = progress
        self.wait = wait
        self._head: Head | None = None
        self._finished = False
        self._at_it = threading.Lock()
        self._telling = threading.Lock()
        self._stopping = threading.Event()

    # -- calls ----------------------------------------------------------

    def prepare(self) -> None:
        """Divide the source, and write the redo log; no row is inserted.

        Raises:
            InvalidState: STARTING and UNPREPARED only.
            LockTimeout: another manager works with this log.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("prepare"):
            self._begin("prepare", PREPARING)
            for _ in self._batches.newly_divided():
                self._tell()

    def insert(self) -> None:
        """Insert all batches of a prepared load; ends CLEANING.

        Raises:
            InvalidState: PREPARING only.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("insert"):
            self._go("insert", INSERTING)
            self._insert("insert")

    def restore(self) -> None:
        """Go on after a crash: insert what is not in the table yet; ends CLEANING.

        Does nothing where there is nothing to restore.

        Raises:
            SourceChanged: the source is not the one that the load began with.
            LockTimeout: another manager works with this log, or the server still
                works for the killed process.
            LoadStopped: :meth:`stop` was called.
        """
        with self._call("restore") as state:
            if state in IDLE["restore"]:
                return
            self._await_predecessors()
            self._begin("restore", INSERTING)
            self._insert("restore")

    def rollback(self) -> None:
        """Delete what this load inserted, in any state but FINISHED; ends CANCELLED.

        Raises:
            InvalidState: FINISHED, or its cleaning has begun.
            LockTimeout, LoadStopped: as :meth:`restore`.
        """
        with self._call("rollback") as state:
            if state is CANCELLED:
                return
            if state in (BLOCKED, CLEANING):
                self._await_predecessors()
                self._go("rollback", BLOCKED)
                self._work(self._batches.to_roll_back(), _rolling_back)
            if self._head is None:
                self._make(CANCELLED)
            else:
                self._go("rollback", CANCELLED)

    def clean(self) -> None:
        """Delete the logs of a load that is through or rolled back; ends FINISHED.

        Raises:
            InvalidState: CLEANING and CANCELLED only.
        """
        with self._call("clean", even_cleaning=True) as state:
            check_change("clean", state, FINISHED)
            assert self._head is not None
            # From here on nothing but cleaning is possible, also after a crash.
            self.log.store(replace(self._head, cleaning=True))
            self.log.clear()
            self._head, self._finished = None, True

    def run(self) -> None:
        """Do what is to be done, from wherever the load stands; ends CLEANING.

        From CLEANING it does nothing, but for going on with a clean() that was killed.

        Raises:
            InvalidState: it was rolled back, or cleaned: clean(), and load anew.
            SourceChanged, LockTimeout, LoadStopped: as :meth:`restore`.
        """
        state, cleaning = self._look()
        if cleaning:
            return self.clean()
        if state in RUNS:
            return getattr(self, RUNS[state])()  # type: ignore[no-any-return]  # None
        with self._call("run") as state:
            if state is STARTING:
                self._begin("run", INSERTING)
                self._insert("run")
            elif state not in IDLE["run"]:  # it was another one when we looked
                raise InvalidState("run", state, calls_in(state))
        return None

    def stop(self) -> None:
        """Have the call under way end after its current batches, with LoadStopped."""
        self._stopping.set()

    @property
    def state(self) -> LoadState:
        """Where the load stands, read from the log."""
        return self.status().state

    def status(self) -> Progress:
        """Look how far the load is, whoever works for it."""
        if self._finished:
            return Progress(state=FINISHED)
        head = self._head
        if head is None:
            return status_of(self.log)
        return progress_of(self.log, head.state, Metadata(**head.metadata))

    def close(self) -> None:
        """Let go of a log that prepare() has kept for insert()."""
        self._head = None
        self.log.close()

    def __enter__(self) -> BulkLoad[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the load; main thread only.

        Ctrl-C alone does so without this, unless it has a handler already.
        """
        return stopping_gently(self.stop, *(signals or (signal.SIGTERM, signal.SIGINT)))

    # -- a call ---------------------------------------------------------

    @contextmanager
    def _call(self, verb: str, *, even_cleaning: bool = False) -> Iterator[LoadState]:
        """Have the log for one call; afterwards, too, where insert() is still to come."""
        if not self._at_it.acquire(blocking=False):
            raise InvalidState(verb, INSERTING, calls_in(INSERTING))
        try:
            state = self._opened(verb, even_cleaning)
            with self._guarded(verb):
                yield state
        finally:
            self._stopping.clear()
            if self._head is None or self._head.state is not PREPARING:
                self.close()
            self._at_it.release()

    def _opened(self, verb: str, even_cleaning: bool) -> LoadState:
        if self._finished:
            check_call(verb, FINISHED)
            return FINISHED
        if self._head is None:
            self._head = self._found()
        state = self._head.state if self._head is not None else STARTING
        check_call(verb, state)
        if self._head is not None and self._head.cleaning and not even_cleaning:
            raise InvalidState(verb, f"{state}, with part of its logs gone", ["clean"])
        return state

    def _found(self) -> Head | None:
        head = self.log.open()
        if head is None:
            return None
        self.source.resume(Metadata(**head.metadata))
        return replace(head, state=after_kill(head.state))

    @contextmanager
    def _guarded(self, verb: str) -> Iterator[None]:
        """Leave a call that fails as one that was killed."""
        catching = stopping_gently(self.stop, signal.SIGINT) if ctrl_c_is_ours() else nullcontext()
        try:
            with catching:
                yield
        except BaseException as error:
            state = after_kill(self._head.state) if self._head is not None else STARTING
            if not isinstance(error, InvalidState | LoadStopped):
                error.add_note(f"{verb}() of a bulk load: {self._said(state)}")
            self._head = None
            raise

    def _said(self, state: LoadState) -> str:
        if self._head is None:
            return "it has not begun."
        return f"{progress_of(self.log, state, Metadata(**self._head.metadata))}; {ways_on(state)}."

    def _look(self) -> tuple[LoadState, bool]:
        if self._finished or self._head is not None:
            return self.state, False
        head, busy = copy(self.log).peek()  # a call may be under way in another thread
        if head is None:
            return STARTING, False
        return head.state if busy else after_kill(head.state), head.cleaning

    # -- states ---------------------------------------------------------

    def _begin(self, verb: str, state: LoadState) -> None:
        """Go to a state in which the redo log is written, or written on."""
        if self._head is None:
            check_change(verb, STARTING, state)
            self._make(state)
            return
        if self._head.state is UNPREPARED:
            self.log.forget_redo()
            self._head = replace(self._head, metadata=asdict(self.source.metadata()))
        self._go(verb, state)

    def _make(self, state: LoadState) -> None:
        head = Head(
            id=uuid.uuid4().hex,
            state=state,
            metadata=asdict(self.source.metadata()),
            workers=self.workers,
        )
        self.log.begin(head)
        self._head = head

    def _go(self, verb: str, state: LoadState) -> None:
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
        # Not an attribute: in a cycle of references, what is open is closed in any order.
        return Batches(self.source, self.log, self._check_stop)

    def _insert(self, verb: str) -> None:
        self._work(self._batches.to_insert(), _inserting)
        self.source.finish(batch for _, batch in self._batches.logged())
        self._go(verb, CLEANING)

    def _work(
        self,
        todo: Generator[tuple[Entry, Any], None, None],
        do: Callable[[Hand[Any], Entry, Any], None],
    ) -> None:
        assert self._head is not None
        load = self._head.id

        @contextmanager
        def at_work(slot: int) -> Iterator[Callable[[tuple[Entry, Any]], None]]:
            with self.source.at_work(load, slot) as hand:

                def work(item: tuple[Entry, Any]) -> None:
                    do(hand, *item)
                    self._tell()

                yield work

        with closing(todo):  # an asynchronous source has an event loop to close
            work_off(todo, at_work, workers=self.source.workers_of(self.workers))

    def _await_predecessors(self) -> None:
        assert self._head is not None
        self.source.await_predecessors(self._head.id, self._head.workers, self.wait)

    def _tell(self) -> None:
        if self.progress is not None:
            with self._telling:
                self.progress(self.status())

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            assert self._head is not None
            raise LoadStopped(f"Stopped. {self._said(after_kill(self._head.state))}")


def _inserting(hand: Hand[Any], entry: Entry, batch: Any) -> None:
    hand.update(batch, entry)


def _rolling_back(hand: Hand[Any], entry: Entry, batch: Any) -> None:
    hand.rollback(batch, entry)
