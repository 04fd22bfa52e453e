"""``work --processes N``: N children that work, until all are ended together.

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
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from .stop_signals import StopSignals
from .supervised import run_child

log = logging.getLogger("sa_jobqueue.cli")

#: How often the supervisor looks at its children, in seconds.
LOOK_EVERY = 0.1

#: A child that lived for less has died at once, in seconds.
SHORT_LIFE = 10.0

#: The longest pause before a child is replaced that has died at once, in seconds.
LONGEST_PAUSE = 60.0

#: How long a child may take to end beyond the grace of its handlers, in seconds; then it is killed.
LAST_SECONDS = 15.0

SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


@dataclass
class Child:
    """A process that works, as its supervisor sees it.

    Attributes:
        began: when it was started, by time.monotonic().
        has_worked: it has said that its worker runs.
    """

    process: SpawnProcess
    pipe: Connection
    began: float
    has_worked: bool = False

    def listen(self) -> None:
        """Note whether it has said that it works."""
        try:
            while self.pipe.poll():
                self.pipe.recv()
                self.has_worked = True
        except (EOFError, OSError):  # it has ended
            pass


@dataclass
class Post:
    """One of the N posts for children.

    Attributes:
        number: 1, 2, ..
        start_at: when its next child is to be started, by time.monotonic().
        short_lives: how many of its children in a row have died at once, or could not be started.
    """

    number: int
    child: Child | None = None
    start_at: float = 0.0
    short_lives: int = 0

    def pause_after(self, life: float) -> float:
        """Return how long to wait before its child is replaced, in seconds."""
        self.short_lives = self.short_lives + 1 if life < SHORT_LIFE else 0
        if not self.short_lives:
            return 0.0
        return float(min(2 ** (self.short_lives - 1), LONGEST_PAUSE))


class Supervisor:
    """Start children, replace those that die, and end them.

    Args:
        arguments: those of the command `work`.
        processes: how many children work at once.
        drain: a child that ends well is not replaced.
        grace: how long handlers may go on when a child is to end.
    """

    def __init__(
        self, arguments: Sequence[str], processes: int, *, drain: bool, grace: timedelta
    ) -> None:
        self._arguments = tuple(arguments)
        self._drain = drain
        self._patience = grace.total_seconds() + LAST_SECONDS
        self._context = multiprocessing.get_context("spawn")
        self._posts = [Post(number) for number in range(1, processes + 1)]
        self._has_worked = False
        self._ending = False
        self._kill_at = math.inf
        self._exit_code = 0

    def run(self) -> int:
        """Supervise until all children have ended; return the exit code.

        Raises:
            KeyboardInterrupt: a second signal came; all children were killed.
        """
        try:
            with StopSignals() as stop:
                while self._posts:
                    if stop.received and not self._ending:
                        log.info("stopping the workers")
                        self._end_children()
                    self._look()
                    if time.monotonic() >= self._kill_at:
                        self._kill_the_late()
                    time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            self._kill_children()
            raise
        finally:
            self._end_children()
        return self._exit_code

    def _look(self) -> None:
        """Start children that are due, and note what became of the others."""
        for post in tuple(self._posts):
            if post.child is not None:
                self._look_at(post, post.child)
            elif self._ending:
                self._posts.remove(post)
            elif post.start_at <= time.monotonic():
                self._fill(post)
            if not self._has_worked and not self._ending:
                return  # the others wait for the first

    def _fill(self, post: Post) -> None:
        """Start the child of a post, or try again later if the system cannot start a process now.

        Raises:
            OSError: no child has worked yet: the service cannot start.
        """
        try:
            post.child = self._start()
        except OSError as error:
            if not self._has_worked:
                raise
            pause = post.pause_after(0.0)
            post.start_at = time.monotonic() + pause
            log.error(
                "worker %d cannot be started, and is tried again in %g s: %s",
                post.number,
                pause,
                error,
            )

    def _start(self) -> Child:
        pipe, pipe_of_child = self._context.Pipe()
        process = self._context.Process(target=run_child, args=(self._arguments, pipe_of_child))
        with pipe_of_child:
            process.start()
        return Child(process, pipe, time.monotonic())

    def _look_at(self, post: Post, child: Child) -> None:
        code = child.process.exitcode  # before we listen: then nothing more is said
        if not self._ending:
            child.listen()
        self._has_worked = self._has_worked or child.has_worked
        if code is None:
            return
        child.pipe.close()
        post.child = None
        if self._is_last_of(post, code):
            self._posts.remove(post)
        else:
            self._replace(post, child, code)

    def _is_last_of(self, post: Post, code: int) -> bool:
        """Note the end of a child that is not replaced; False: it is to be replaced."""
        if self._ending or not self._has_worked:
            self._exit_code = self._exit_code or (code if code >= 0 else 128 - code)
            self._end_children()
            return True
        return self._drain and code == 0

    def _replace(self, post: Post, child: Child, code: int) -> None:
        pause = post.pause_after(time.monotonic() - child.began)
        post.start_at = time.monotonic() + pause
        log.warning(
            "worker %d (process %s) has ended with %s, and is replaced%s",
            post.number,
            child.process.pid,
            f"exit code {code}" if code >= 0 else SIGNAL_NAMES.get(-code, f"signal {-code}"),
            f" in {pause:g} s" if pause else "",
        )

    def _end_children(self) -> None:
        """Have all children finish their running jobs, and end."""
        if self._ending:
            return
        self._ending = True
        self._kill_at = time.monotonic() + self._patience
        for post in self._posts:
            if post.child is not None:
                post.child.pipe.close()

    def _kill_the_late(self) -> None:
        """Kill the children that do not end; other workers reap their claims."""
        self._kill_at = math.inf
        for post in self._posts:
            if post.child is not None:
                log.error(
                    "worker %d (process %s) has not ended %g s after it was asked to, and is "
                    "killed; a reap returns its jobs to the queue",
                    post.number,
                    post.child.process.pid,
                    self._patience,
                )
        self._kill_children()

    def _kill_children(self) -> None:
        for post in self._posts:
            if post.child is not None:
                post.child.process.kill()
                post.child.process.join()
