"""Other processes that take named locks: told what to do, killed, stopped."""

from __future__ import annotations

import signal
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from sqlalchemy import URL

from sa_jobqueue import NamedLock, named_lock

# Inner: nothing public tells that a process has begun to wait.
from sa_jobqueue.databases.named_locks import Deadline
from tests.processes import Victim
from tests.support import make_engine

NOW = timedelta(0)
PATIENCE = timedelta(seconds=30)


class Locker(Victim):
    """A process with a named lock, which does what the test tells it.

    ::

        with Locker(url, "report") as other:
            assert other("acquire", NOW)
            other.kill()
    """

    def __init__(self, url: URL, name: str) -> None:
        super().__init__(url, obey, name)
        self.answer()

    def __call__(self, what: str, *arguments: Any) -> Any:
        """Call a method of the process's lock, and return its result."""
        self.tell(what, *arguments)
        return self.answer()

    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the process's lock, and do not wait for it."""
        self.pipe.send((what, arguments))

    def answer(self) -> Any:
        """Wait for what the last call returned, or raise what it raised."""
        answer = self.hears()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def begin_to_wait(self) -> None:
        """Make the process wait for the lock without timeout; return once it waits."""
        self.tell("wait")
        assert self.answer() == "waiting"


def obey(url: str, name: str, told: Connection) -> None:
    """Do what the test tells, in another process."""
    # A shell may have started the tests in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = make_engine(url)
    lock = named_lock(engine, name)
    told.send("ready")
    while True:
        what, arguments = told.recv()
        try:
            told.send(done(lock, told, what, arguments))
        except (Exception, KeyboardInterrupt) as error:  # the test judges the error
            told.send(error)


def done(lock: NamedLock, told: Connection, what: str, arguments: tuple[Any, ...]) -> Any:
    if what == "wait":
        return wait(lock, told)
    found = getattr(lock, what)
    return found(*arguments) if callable(found) else found


def wait(lock: NamedLock, told: Connection) -> bool:
    """Wait for the lock without timeout; report when the wait begins."""
    left = Deadline.left
    says = iter(["waiting"])

    def announced(deadline: Deadline, at_most: float) -> float:
        for word in says:
            told.send(word)
        return left(deadline, at_most)

    with patch.object(Deadline, "left", announced):
        return lock.acquire(None)
