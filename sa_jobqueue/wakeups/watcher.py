"""What wakes one worker: the verbs of its process, and a watcher.

The watcher is a thread that waits for a source, looks for due jobs, and rings the alarm. An
AsyncWorker has it too: its event loop does not wait for the watcher's reads, nor they for it.

The first ring is never delayed, and one for nothing brings a pause. Where many idle workers wait
for one queue, each job wakes all of them, and one gets it. The others then let some time pass
before they react again; each takes another time. A ring during this time takes effect at its end.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine

from ..databases import Database
from ..errors import UnsupportedDatabase
from ..events.listeners import watch_flushes
from ..events.notes import channel_of, schemas_of
from ..model.mapping import QueueMapping, WakeCall, any_mapping_of
from ..process import THREADS, Background, Runtime
from .source import DataVersion, Lines, Listening, Look, Looking

if TYPE_CHECKING:
    from ..queue import JobQueue

log = logging.getLogger("sa_jobqueue.wakeups")

#: The pauses before a source that is away is tried again.
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)

#: How long the end of the thread is waited for: it may be connecting.
END_WITHIN = timedelta(seconds=1)

#: How long after a ring a look for due times comes, if the worker is still idle then.
AFTER_CLAIM = timedelta(milliseconds=100)

#: A time that has come by our clock has come by the database's, too.
MARGIN = 0.002

#: So many seconds after a job has become due we look whether it was claimed.
AGAIN = 0.1


class Wakeups:
    """What wakes a worker, inside of the block of its ``with``.

    Args:
        lines: where the wake-ups of one pool have a connection in common.
        queues: those that it claims from.
        wake: has the worker claim at a time, by time.monotonic(); any thread may call it.
        poll: the longest pause between two looks.
        shared: other connections see the database: it is not in memory.
    """

    def __init__(
        self,
        engine: Engine,
        database: Database,
        lines: Lines,
        queues: Sequence[JobQueue[Any]],
        wake: Callable[[float], None],
        *,
        runtime: Runtime,
        poll: timedelta,
        shared: bool,
    ) -> None:
        self._runtime = runtime
        self._shared = shared
        self._alarm = Alarm(wake)
        self._engine = engine
        self._in_process = woken_by_verbs([queue.mapping for queue in queues], self._hear_verb)
        self._source = self._source_of(engine, database, lines, queues)
        specs = [queue.plan.spec for queue in queues]
        self._look = Look(specs, database, engine.get_execution_options())
        self._pace = Pace(poll)
        self._changed = THREADS.condition()
        self._is_connected = self._was_away = self._noticed = self._ended = False
        self._thread: Background | None = None
        self._pause_if_away = FIRST_PAUSE.total_seconds()
        self._look_at = self._due_at = math.inf

    def __enter__(self) -> Wakeups:
        self._in_process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runtime.run_blocking(self._end)
        finally:
            self._in_process.__exit__(None, None, None)

    @property
    def healthy(self) -> bool:
        """Whether a new job wakes the worker, so that it need not claim often by itself."""
        return self._is_connected and (self._source.tells or self._source.often)

    @property
    def looks(self) -> bool:
        """Whether the watcher looks for due jobs again and again, since nothing tells of them."""
        return self._source.often and not self._source.tells

    def claimed(self, *, found: bool) -> None:
        """Note a claim of the worker, and whether it found jobs; the first idle one begins."""
        was_idle = self._alarm.idle
        self._alarm.claimed(found=found)
        if self._shared and not (found or was_idle):
            if self._thread is None:
                self._thread = THREADS.start(self._run, name="sa_jobqueue watcher")
            self._look_soon()

    def _source_of(
        self, engine: Engine, database: Database, lines: Lines, queues: Sequence[JobQueue[Any]]
    ) -> Looking:
        if database.tells_changes:
            return DataVersion(engine)
        channels = {channel_of(q.mapping.table, engine) for q in queues if q.mapping.args.notify}
        channels |= {queue.listen for queue in queues if queue.listen is not None}
        if not (channels and database.notifies):
            return Looking(engine, database, lines)
        return Listening(
            engine,
            database,
            lines,
            frozenset(channels),
            tells=all(queue.mapping.args.notify or queue.listen for queue in queues),
            heard=self._hear,
            noticed=self._notice,
        )

    # -- from other threads ---------------------------------------------

    def _hear(self) -> None:
        """Ring; a job that is not due yet is found by a look after the claim."""
        self._alarm.ring()
        if self._thread is not None:
            self._look_soon(AFTER_CLAIM.total_seconds())

    def _hear_verb(self, connection: Connection) -> None:
        """Ring for a verb of this process, unless it was in another schema of the same pool."""
        is_ours = connection.engine.pool is not self._engine.pool or (
            schemas_of(connection) == schemas_of(self._engine)
        )
        if is_ours:
            self._hear()

    def _look_soon(self, seconds: float = 0.0) -> None:
        """Look, if there is something to find out."""
        if self._look.knows_times or not (self._is_connected and self._source.tells):
            self._look_at = min(self._look_at, time.monotonic() + seconds)
            self._notice()

    def _notice(self) -> None:
        """End a pause: there is something to look at."""
        with self._changed:
            self._noticed = True
            self._changed.notify_all()

    def _end(self) -> None:
        self._ended = True
        self._notice()
        if self._thread is not None:
            self._thread.join(END_WITHIN.total_seconds())

    # -- the thread -----------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                with self._source.opened():
                    self._is_connected = True
                    self._watch()
            except UnsupportedDatabase as error:
                self._note_away(error)
                return
            except Exception as error:  # the worker itself claims now and then, and reports errors
                self._note_away(error)
                with self._changed:
                    pause = self._pause_if_away * random.uniform(0.5, 1.0)
                    self._changed.wait_for(lambda: self._ended, pause)
                self._pause_if_away = min(self._pause_if_away * 2, LONGEST_PAUSE.total_seconds())
            finally:
                self._is_connected = False

    def _note_back(self) -> None:
        """Note that the source is there, and that the last look has not failed."""
        if self._was_away:
            log.warning("new jobs wake this worker again")
        self._was_away = False
        self._pause_if_away = FIRST_PAUSE.total_seconds()

    def _note_away(self, error: Exception) -> None:
        if not self._was_away and not self._ended:
            reason = str(error).partition("\n")[0]
            log.warning(
                "new jobs do not wake this worker; it looks for jobs at intervals: %s", reason
            )
        self._was_away = True

    def _watch(self) -> None:
        self._alarm.ring()  # for what was committed before we were connected
        while not self._ended:
            if self._look_at > time.monotonic():
                self._note_back()
            if self._source.wait(self._until_next(), self._pause):
                self._look_at = 0.0
            now = time.monotonic()
            if self._due_at <= now:
                self._due_at, self._look_at = math.inf, now + AGAIN
                self._alarm.ring()
            if self._alarm.idle and self._look_at <= now:
                self._look_now()

    def _until_next(self) -> float:
        at = min(self._due_at, self._look_at if self._alarm.idle else math.inf)
        return min(max(0.0, at - time.monotonic()), LONGEST_PAUSE.total_seconds())

    def _look_now(self) -> None:
        began = time.monotonic()
        left = self._source.ask(self._look.due_in)
        now = time.monotonic()
        is_due = left is not None and left <= 0
        self._look_at = self._due_at = math.inf
        if is_due or (self._source.often and not self._source.tells):
            last_job = self._alarm.last_job
            self._look_at = now + self._pace.pause(last_job, took=now - began, is_due=is_due)
        if is_due:
            self._alarm.ring()
        elif left is not None:
            self._due_at = now + left + MARGIN

    def _pause(self, seconds: float) -> bool:
        """Wait, or until something is to be noticed; tell whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._noticed or self._ended, seconds)
            noticed, self._noticed = self._noticed, False
        return noticed or self._ended


_one_at_a_time = threading.Lock()


@contextmanager
def woken_by_verbs(mappings: Iterable[QueueMapping], wake: WakeCall) -> Iterator[None]:
    """Have a function called after each commit that makes jobs of these classes claimable."""
    # All of them before any gets the call: a new mapping takes those of its parent.
    found = {
        any_mapping_of(mapper)
        for mapping in mappings
        for mapper in mapping.mapper.self_and_descendants
    }
    for mapping in found:
        watch_flushes(mapping.mapper)
    _change(found, lambda calls: (*calls, wake))
    try:
        yield
    finally:
        _change(found, lambda calls: tuple(call for call in calls if call is not wake))


_Calls = tuple[WakeCall, ...]


def _change(mappings: Iterable[QueueMapping], changed: Callable[[_Calls], _Calls]) -> None:
    with _one_at_a_time:
        for mapping in mappings:
            mapping.wake_calls = changed(mapping.wake_calls)
            mapping.wakes = mapping.args.notify or bool(mapping.wake_calls)


#: The pause after a ring for nothing: at first, and after many in a row.
FIRST_DEAF = timedelta(milliseconds=20)
LONGEST_DEAF = timedelta(milliseconds=250)

#: After so long without a ring the next one counts as the first again.
FORGOTTEN = timedelta(seconds=1)


class Alarm:
    """Wakes a worker; any thread may ring.

    Args:
        wake: has the worker claim at a time, by time.monotonic().

    Attributes:
        idle: the last claim found nothing.
        last_job: when a claim last found a job, by time.monotonic().
        for_nothing: how many rings in a row found nothing.
    """

    def __init__(self, wake: Callable[[float], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._rang_at = -math.inf
        self._rang = False
        self._quiet_until = 0.0
        self.idle = False
        self.last_job = time.monotonic()
        self.for_nothing = 0

    def ring(self) -> None:
        """Wake the worker now, or at the end of its pause."""
        with self._lock:
            now, rang = time.monotonic(), self._rang
            if now - self._rang_at > FORGOTTEN.total_seconds():
                self.for_nothing = 0
            self._rang_at, self._rang = now, True
            in_pause = now < self._quiet_until
        if not (in_pause and rang):  # else it is told already
            self._wake(self._quiet_until if in_pause else 0.0)

    def claimed(self, *, found: bool) -> None:
        """Note a claim, and whether it found jobs."""
        with self._lock:
            self.idle = not found
            if found:
                self.last_job = time.monotonic()
                self.for_nothing = 0
            elif self._rang:
                self.for_nothing += 1
                self._quiet_until = time.monotonic() + self._pause()
            self._rang = False

    def _pause(self) -> float:
        doubled: timedelta = FIRST_DEAF * 2 ** min(self.for_nothing - 1, 10)
        return min(doubled, LONGEST_DEAF).total_seconds() * random.uniform(0.5, 1.0)


#: The pause between two looks while the last job is not long ago.
BETWEEN_LOOKS = timedelta(milliseconds=20)

#: So long after the last job the pauses begin to double.
WINDOW = timedelta(seconds=10)

#: A look that takes long is followed by a pause of so many times that long.
SHARE = 10


class Pace:
    """The pauses between looks: they begin anew with each job that was claimed.

    Args:
        longest: the `poll` of the worker.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest.total_seconds()
        self._pause = 0.0
        self._last_job = 0.0

    def pause(self, last_job: float, *, took: float, is_due: bool) -> float:
        """Return the seconds until the next look.

        Args:
            last_job: when a claim last found a job, by time.monotonic().
            took: seconds that the look took.
            is_due: the look has found a job: one that cannot be claimed, if it finds it again.
        """
        shortest = min(BETWEEN_LOOKS.total_seconds(), self._longest)
        is_recent = not is_due and time.monotonic() - last_job < WINDOW.total_seconds()
        if is_recent or last_job != self._last_job:
            self._pause, self._last_job = shortest, last_job
        else:
            self._pause = max(self._pause, shortest) * 2
        self._pause = min(max(self._pause, took * SHARE), max(self._longest, took * SHARE))
        return self._pause * random.uniform(0.8, 1.0)
