"""When the process of a worker ends at the latest, whatever still runs in it.

Python waits at its end for threads that nobody can stop, such as those of asyncio.to_thread(). A
worker that was asked to stop has released their jobs; its process ends without them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

log = logging.getLogger("sa_jobqueue.cli")

#: How long a process may take to end after its worker has ended, in seconds.
LAST_MOMENTS = 1.0

_owned = threading.Event()


def own_process() -> None:
    """Note that this process has only our command to run; a test's process is not ended."""
    _owned.set()


class LastDeadline:
    """The last deadline of a process that runs a worker.

    Args:
        grace: how long handlers may go on after the worker was asked to stop.
    """

    def __init__(self, grace: timedelta) -> None:
        self._grace = grace
        self._stopped_at: float | None = None

    def noting(self, stop: Callable[[], None]) -> Callable[[], None]:
        """Return what stops a worker, and notes when."""

        def note_and_stop() -> None:
            self._stopped_at = time.monotonic()
            stop()

        return note_and_stop

    @contextmanager
    def after_run(self) -> Iterator[None]:
        """Run a worker in this block; afterwards keep the deadline, unless nobody ended it."""
        try:
            yield
        except BaseException:
            self._keep(1)
            raise
        if self._stopped_at is not None:
            self._keep(0)

    def _keep(self, exit_code: int) -> None:
        if not _owned.is_set():
            return
        ends_at = time.monotonic() + LAST_MOMENTS
        if self._stopped_at is not None:
            ends_at = max(ends_at, self._stopped_at + self._grace.total_seconds())
        arguments = (ends_at, exit_code, list(logging.root.handlers))
        threading.Thread(
            target=_end_at, args=arguments, name="sa_jobqueue deadline", daemon=True
        ).start()


def _end_at(ends_at: float, exit_code: int, handlers: list[logging.Handler]) -> None:
    """End the process then; if it has ended earlier, so has this thread, which is a daemon."""
    time.sleep(max(ends_at - time.monotonic(), 0))
    logging.root.handlers = handlers  # the command, which has ended, has taken its own away
    main = threading.main_thread()
    names = sorted(t.name for t in threading.enumerate() if not t.daemon and t is not main)
    log.error(
        "the worker has ended, and its process has not: it is ended%s",
        f", although threads still run: {', '.join(names)}" if names else "",
    )
    for stream in (*handlers, sys.stdout, sys.stderr):
        with suppress(Exception):  # nobody may read it any more
            stream.flush()
    os._exit(exit_code)
