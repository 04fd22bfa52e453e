"""The watcher: a thread that waits for a source, looks for due jobs, and rings the alarm.

An AsyncWorker has it too: its event loop does not wait for the watcher's reads, nor they for it.

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
from collections.abc import Callable
from datetime import timedelta

from ..errors import UnsupportedDatabase
from ..process import THREADS, Background
from .source import Look, Looking

log = logging.getLogger("sa_jobqueue.wakeups")

#: The pauses before a source that is away is tried again.
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)

#: How long the end of the thread is waited for: it may be connecting.
END_WITHIN = timedelta(seconds=1)

#: A time that has come by our clock has come by the database's, too.
MARGIN = 0.002

#: So many seconds after a job has become due we look whether it was claimed.
AGAIN = 0.1


class Watcher:
    """Rings when a job may be claimed, from the first time on that the worker is idle.

    Args:
        poll: the longest pause between two looks.
    """

    def __init__(self, alarm: Alarm, look: Look, *, poll: timedelta) -> None:
        self.healthy = False
        self._alarm = alarm
        self._look = look
        self._pace = Pace(poll)
        self._source: Looking
        self._changed = THREADS.condition()
        self._noticed = self._ended = False
        self._thread: Background | None = None
        self._was_away = False
        self._pause_if_away = FIRST_PAUSE.total_seconds()
        self._look_at = math.inf
        self._due_at = math.inf

    def start(self, source: Looking) -> None:
        """Start the thread."""
        self._source = source
        self._thread = THREADS.start(self._run, name="sa_jobqueue watcher")

    @property
    def started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._thread is not None

    def notice(self) -> None:
        """End a pause: there is something to look at."""
        with self._changed:
            self._noticed = True
            self._changed.notify_all()

    def look_soon(self, seconds: float = 0.0) -> None:
        """Look, if there is something to find out; any thread may call it."""
        if self._look.knows_times or not (self.healthy and self._source.tells):
            self._look_at = min(self._look_at, time.monotonic() + seconds)
            self.notice()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self.notice()
        if self._thread is not None:
            self._thread.join(END_WITHIN.total_seconds())

    # -- the thread -----------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                with self._source.opened():
                    self.healthy = True
                    self._watch()
            except UnsupportedDatabase as error:
                self._note_away(error)
                return
            except Exception as error:  # the worker itself claims now and then, and reports errors
                self._note_away(error)
                self._pause_for(self._pause_if_away * random.uniform(0.5, 1.0))
                self._pause_if_away = min(self._pause_if_away * 2, LONGEST_PAUSE.total_seconds())
            finally:
                self.healthy = False

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

    def _pause_for(self, seconds: float) -> None:
        """Wait, or until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)


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
