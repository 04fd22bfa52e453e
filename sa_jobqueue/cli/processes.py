"""The process of a worker, and ``work --processes N``: N of them, until all end together.

A child that dies is replaced. Those that die soon after their start are replaced after a pause,
which grows. The first child starts alone: when it fails before it has come to work, the arguments
are wrong, and the command ends with its exit code.

A pipe joins the supervisor to each child. When it is closed, because the command is to end or
because the supervisor was killed, the child finishes its running jobs and ends. This is no signal:
so a child that receives SIGTERM, too, as all processes of a service may, is not asked twice. A
child that does not end in its time is killed.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from ..process import THREADS, first_signal_stops

log = logging.getLogger("sa_jobqueue.cli")

#: How often the supervisor looks at its children, in seconds.
LOOK_EVERY = 0.1

#: A child that lived for less has died at once, in seconds.
SHORT_LIFE = 10.0

#: The longest pause before a child is replaced that has died at once, in seconds.
LONGEST_PAUSE = 60.0

#: How long a child may take to end beyond the grace of its handlers, in seconds; then it is killed.
LAST_SECONDS = 15.0

#: How long a process may take to end after its worker has ended, in seconds.
LAST_MOMENTS = 1.0


class OwnProcess:
    """A process in which only a command runs, so that it may be ended; a test's process is none.

    Args:
        pipe: to the supervisor, which closes it when the process is to end; None: there is none.
    """

    def __init__(self, pipe: Connection | None = None) -> None:
        self.pipe = pipe
        # An import may take its time, or hang: before the work the process just ends.
        self._stop: Callable[[], object] = lambda: os._exit(0)
        if pipe is not None:
            THREADS.start(partial(self._listen, pipe), name="sa_jobqueue listen")

    def begin_work(self, stop: Callable[[], object], trouble: Callable[[], str | None]) -> None:
        """Tell the supervisor that the worker runs; from now on `stop` is how it ends.

        Args:
            trouble: tells why the worker cannot claim; the supervisor hears of each change.
        """
        self._stop = stop
        if self.pipe is not None:
            THREADS.start(partial(self._tell, self.pipe, trouble), name="sa_jobqueue tell")

    def _tell(self, pipe: Connection, trouble: Callable[[], str | None]) -> None:
        told: object = self
        with suppress(OSError):  # the supervisor is gone: the other thread notices that, too
            while True:
                if (now := trouble()) != told:
                    pipe.send(now)
                    told = now
                time.sleep(1)

    def _listen(self, pipe: Connection) -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
        self._stop()

    def end_at(self, moment: float, exit_code: int) -> None:
        """End the process then, by time.monotonic(), whatever still runs in it.

        Python waits at its end for threads that nobody can stop, such as those of
        asyncio.to_thread(). The worker has ended, and has released their jobs.
        """

        def end() -> None:
            time.sleep(max(moment - time.monotonic(), LAST_MOMENTS))
            main = threading.main_thread()
            threads = [it for it in threading.enumerate() if not it.daemon and it is not main]
            names = ", ".join(sorted(it.name for it in threads))
            running = f", although threads still run: {names}" if names else ""
            log.error("the worker has ended, and its process has not: it is ended%s", running)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # nobody may read it any more
                    stream.flush()
            os._exit(exit_code)

        THREADS.start(end, name="sa_jobqueue end")


def run_child(pipe: Connection) -> None:
    """Run the command line of the supervisor in this process, and end with its exit code."""
    from . import cli  # which imports us

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    cli(prog_name="sa-jobqueue", obj=OwnProcess(pipe))


@dataclass
class Post:
    """One of the N posts for children.

    Attributes:
        number: 1, 2, ..
        began: when its child was started, by time.monotonic().
        start_at: when its next child is to be started.
        short_lives: how many of its children in a row have died at once, or could not be started.
        trouble: why its child cannot claim, as it was last told; None: it claims.
    """

    number: int
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    began: float = 0.0
    start_at: float = 0.0
    short_lives: int = 0
    trouble: str | None = "a worker has not begun"

    def start(self) -> None:
        """Start a child, which has our sys.argv."""
        self.trouble = "a worker has not begun"
        context = multiprocessing.get_context("spawn")
        self.pipe, pipe_of_child = context.Pipe()
        process = context.Process(target=run_child, args=(pipe_of_child,))
        self.began = time.monotonic()
        with pipe_of_child:
            process.start()
        self.process = process

    def works(self) -> bool:
        """Hear what the child tells; tell whether it has said that its worker runs."""
        with suppress(EOFError, OSError):  # it has ended
            if self.pipe is not None and self.pipe.poll():
                self.trouble = self.pipe.recv()
                return True
        return False

    def pause_after(self, life: float) -> float:
        """Return how long to wait before a child that lived so long is replaced, in seconds."""
        self.short_lives = self.short_lives + 1 if life < SHORT_LIFE else 0
        pause = min(2.0 ** (self.short_lives - 1), LONGEST_PAUSE) if self.short_lives else 0.0
        self.start_at = time.monotonic() + pause
        return pause


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
        self._posts = [Post(number) for number in range(1, processes + 1)]
        self._has_worked = self._ending = False
        self._asked = THREADS.flag()
        self._kill_at = math.inf
        self._exit_code = 0

    @property
    def trouble(self) -> str | None:
        """Why a child cannot claim; None: all of them claim."""
        if self._ending:
            return "the workers are to stop"
        return next((post.trouble for post in tuple(self._posts) if post.trouble), None)

    def run(self) -> int:
        """Supervise until all children have ended; return the exit code.

        Raises:
            KeyboardInterrupt: a second signal came; all children were killed.
            OSError: no first child could be started.
        """
        try:
            with first_signal_stops(self._asked.set):
                while self._posts:
                    self._look()
                    time.sleep(LOOK_EVERY)
        finally:
            for post in self._posts:
                if post.process is not None:
                    post.process.kill()
                    post.process.join()
        return self._exit_code

    def _look(self) -> None:
        """Start children that are due, note what became of the others, and end them in time."""
        if self._asked.is_set() and not self._ending:
            log.info("stopping the workers")
            self._end()
        for post in tuple(self._posts):
            if post.process is not None:
                self._look_at(post, post.process)
            elif self._ending:
                self._posts.remove(post)
            elif post.start_at <= time.monotonic():
                self._fill(post)
            if not self._has_worked and not self._ending:
                return  # the others wait for the first

    def _fill(self, post: Post) -> None:
        """Start a child; if the system cannot start a process now, try again later."""
        try:
            post.start()
        except OSError as error:
            if not self._has_worked:
                raise
            told = "worker %d cannot be started, and is tried again in %g s: %s"
            log.error(told, post.number, post.pause_after(0.0), error)

    def _look_at(self, post: Post, process: SpawnProcess) -> None:
        """Replace a child that has ended, or end with it; kill it if it is late."""
        code = process.exitcode  # before we listen: then nothing more is said
        if not self._ending:
            self._has_worked = post.works() or self._has_worked
        name = f"worker {post.number} (process {process.pid})"
        if code is None:
            if time.monotonic() >= self._kill_at:
                asked = f"has not ended {self._patience:g} s after it was asked to"
                log.error("%s %s, and is killed; a reap returns its jobs to the queue", name, asked)
                process.kill()
                process.join()
            return
        post.process = None
        if self._ending or not self._has_worked:
            self._exit_code = self._exit_code or (code if code >= 0 else 128 - code)
            self._end()
        elif not (self._drain and code == 0):
            pause = post.pause_after(time.monotonic() - post.began)
            how = (
                f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
            )
            wait = f" in {pause:g} s" if pause else ""
            if code:
                log.warning("%s has ended with %s, and is replaced%s", name, how, wait)
            else:
                log.info("%s has ended as it was told to, and is replaced%s", name, wait)
            return
        self._posts.remove(post)

    def _end(self) -> None:
        """Have all children finish their running jobs, and end."""
        if self._ending:
            return
        self._ending, self._kill_at = True, time.monotonic() + self._patience
        for post in self._posts:
            if post.pipe is not None:
                post.pipe.close()
