"""What a watcher waits for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection

R = TypeVar("R")

#: Waits so many seconds, or until there is something to look at: then it returns True.
Pause: TypeAlias = Callable[[float], bool]


class Source(Protocol):
    """What tells of changes, over a connection of its own. Whatever it raises: it is away.

    Attributes:
        tells: it tells of every commit of jobs, so nobody needs to look.
        often: where it does not tell, look often for some time after the last job.
        rings: a change is a job, most of the time: ring at once, and do not look first.
    """

    @property
    def tells(self) -> bool: ...
    @property
    def often(self) -> bool: ...
    @property
    def rings(self) -> bool: ...

    def opened(self) -> AbstractContextManager[None]:
        """Be connected inside of the block."""
        ...

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait at most so many seconds; tell whether something has changed."""
        ...

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Read on the connection, in no transaction."""
        ...
