"""The process of a worker, and ``work --processes N``: N of them, until all end together.

A thread for each of the N starts a child, waits for its end, and starts the next. Those that die
soon after their start are replaced after a pause, which grows. The first child starts alone: when
it fails before it has come to work, the arguments are wrong, and the command ends with its exit
code.

A pipe joins the supervisor to each child. When it is closed, because the command is to end or
because the supervisor was killed, the child finishes its running jobs and ends. This is no signal:
so a child that receives SIGTERM, too, as all processes of a service may, is not asked twice. A
child that does not end in its time is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from ..process import THREADS, first_signal_stops

log = logging.getLogger("sa_jobqueue.cli")

#: How often the supervisor and its children look at each other, in seconds.
LOOK_EVERY = 0.1

#: A child that lived for less has died at once, in seconds.
SHORT_LIFE = 10.0

#: The longest pause before a child is replaced that has died at once, in seconds.
LONGEST_PAUSE = 60.0

#: How long a child may take to end beyond the grace of its handlers, in seconds; then it is killed.
LAST_SECONDS = 15.0

#: How long a process may take to end after its worker has ended, in seconds.
LAST_MOMENTS = 10.0

#: The trouble of a child until its worker runs.
NOT_BEGUN = "a worker has not begun"


class OwnProcess:
    """The process in which a command runs.

    Args:
        pipe: to the supervisor, which closes it when the process is to end; None: there is none.
        may_end: nothing else runs in it, so that it may be ended; a test's process may not.
    """

    def __init__(self, pipe: Connection | None = None, *, may_end: bool = True) -> None:
        self.is_child, self._may_end = pipe is not None, may_end
        # An import may take its time, or hang: before the work the process just ends.
        self._stop: Callable[[], object] = lambda: os._exit(0)
        self._trouble: Callable[[], str | None] = lambda: NOT_BEGUN
        if pipe is not None:
            THREADS.start(partial(self._talk, pipe), name="sa_jobqueue supervised")

    @contextmanager
    def working(
        self, stop: Callable[[], object], trouble: Callable[[], str | None]
    ) -> Iterator[None]:
        """Let the supervisor end the work in the block; end the process soon after it.

        Python waits at its end for threads that nobody can stop, such as those of
        asyncio.to_thread(). The worker has ended, and has released their jobs.

        Args:
            trouble: tells why the worker cannot claim; the supervisor hears of each change.
        """
        self._stop, self._trouble, exit_code = stop, trouble, 1
        try:
            yield
            exit_code = 0
        finally:
            if self._may_end:
                THREADS.start(partial(_end, exit_code), name="sa_jobqueue end")

    def _talk(self, pipe: Connection) -> None:
        told: str | None = NOT_BEGUN
        with suppress(EOFError, OSError):
            while not pipe.poll(LOOK_EVERY):  # nothing is ever sent to us, but the end
                if (now := self._trouble()) != told:
                    pipe.send(told := now)
        self._stop()


def _end(exit_code: int) -> None:
    time.sleep(LAST_MOMENTS)
    running = ", ".join(sorted(it.name for it in threading.enumerate() if not it.daemon))
    log.error("the worker has ended, and its process is ended, although these run: %s", running)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # nobody may read it any more
            stream.flush()
    os._exit(exit_code)


def run_child(pipe: Connection) -> None:
    """Run the command line of the supervisor in this process, and end with its exit code."""
    from . import cli  # which imports us

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    cli(prog_name="sa-jobqueue", obj=OwnProcess(pipe))


class Supervisor:
    """Start children, replace those that die, and end them.

    Args:
        processes: how many children work at once.
        drain: a child that ends well is not replaced.
        grace: how long handlers may go on when a child is to end.
    """

    def __init__(self, processes: int, *, drain: bool, grace: timedelta) -> None:
        self._drain = drain
        self._patience = grace.total_seconds() + LAST_SECONDS
        self._troubles: dict[int, str | None] = dict.fromkeys(range(1, processes + 1), NOT_BEGUN)
        self._children: dict[int, SpawnProcess] = {}
        self._has_worked, self._ending = THREADS.flag(), THREADS.flag()
        self._exit_code = 0

    @property
    def trouble(self) -> str | None:
        """Why a child cannot claim; None: all of them claim."""
        if self._ending.is_set():
            return "the workers are to stop"
        return next(filter(None, tuple(self._troubles.values())), None)

    def run(self) -> int:
        """Supervise until all children have ended; return the exit code.

        Raises:
            KeyboardInterrupt: a second signal came; all children were killed.
        """
        try:
            with first_signal_stops(self._end):
                for number in tuple(self._troubles):
                    THREADS.start(partial(self._keep, number), name=f"worker {number}")
                    while not self._has_worked.wait(LOOK_EVERY):
                        pass  # the others wait for the first
                while self._troubles:
                    time.sleep(LOOK_EVERY)
        finally:
            for child in self._children.values():
                child.kill()
        return self._exit_code

    def _end(self) -> None:
        self._ending.set()
        self._has_worked.set()

    def _keep(self, number: int) -> None:
        """Keep a child at work, until all are to end."""
        pause = 0.0
        while not self._ending.wait(pause):
            began = time.monotonic()
            code, name = self._run_child(number)
            if self._ending.is_set() or not (self._has_worked.is_set() or code == 0):
                self._exit_code = self._exit_code or (code if code >= 0 else 128 - code)
                self._end()
            elif self._drain and code == 0:
                break
            else:
                short = time.monotonic() - began < SHORT_LIFE
                pause = min(2 * pause or 1.0, LONGEST_PAUSE) if short else 0.0
                how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"code {code}"
                if code:
                    log.warning("%s has ended with %s, and is replaced in %g s", name, how, pause)
                else:
                    log.info("%s has ended, and is replaced in %g s", name, pause)
        self._has_worked.set()
        del self._troubles[number]

    def _run_child(self, number: int) -> tuple[int, str]:
        """Start a child, which has our sys.argv, and see it to its end; return its exit code."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(target=run_child, args=(theirs,))
        self._troubles[number] = NOT_BEGUN
        try:
            child.start()
        except OSError as error:
            log.error("worker %d cannot be started: %s", number, error)
            return 1, f"worker {number}"
        finally:
            theirs.close()
        self._children[number] = child
        with ours, suppress(EOFError, ConnectionError):  # it has ended
            while not self._ending.is_set():
                if ours.poll(LOOK_EVERY):
                    self._troubles[number] = ours.recv()
                    self._has_worked.set()
                elif child.exitcode is not None:  # a process that it has forked has the pipe
                    break
        child.join(self._patience)
        name = f"worker {number} (process {child.pid})"
        if child.exitcode is None:
            asked = f"has not ended {self._patience:g} s after it was asked to"
            log.error("%s %s, and is killed; a reap returns its jobs to the queue", name, asked)
            child.kill()
            child.join()
        return child.exitcode or 0, name
