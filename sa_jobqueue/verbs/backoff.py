"""How long a failed job waits for its next attempt.

::

    ConstantBackoff(timedelta(minutes=5))
    ExponentialBackoff(timedelta(seconds=2), longest=timedelta(minutes=10))

    queue = JobQueue(Email, backoff=ConstantBackoff(timedelta(minutes=5)))
    queue.fail(session, email, error=error)  # unclaimed again, and due in five minutes

A policy is called with the number of attempts that a job has had, this one
included, and returns a timedelta: a function of your own is as good as those here.
No wait is negative, or longer than ten years.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from ..errors import ArgumentError
from ..model.mapping import QueueMapping

log = logging.getLogger("sa_jobqueue.failure")

#: Anything that makes a wait of the number of attempts.
Backoff: TypeAlias = Callable[[int], timedelta]

#: The longest wait: a time beyond it may be none that the engines can store.
LONGEST_DELAY = timedelta(days=3650)

#: Attempts that no column counts beyond.
_MOST_ATTEMPTS = 2**31


@dataclass(frozen=True)
class ConstantBackoff:
    """Wait equally long after each attempt.

    Attributes:
        delay: how long.

    Raises:
        ArgumentError: what is no timedelta, or negative, or over ten years.
    """

    delay: timedelta

    def __post_init__(self) -> None:
        _check_wait("delay", self.delay)

    def __call__(self, attempts: int) -> timedelta:
        """Return the wait after so many attempts."""
        return self.delay


@dataclass(frozen=True)
class ExponentialBackoff:
    """Wait `factor` times as long after each further attempt.

    By default 1, 2, 4, .. seconds, at most an hour, each up to a tenth shorter.

    Attributes:
        first: the wait after the first attempt.
        factor: by how much the wait grows, at least 1.
        longest: no wait is longer.
        jitter: by which share of itself, from 0 to 1, a wait may be shorter: so
            jobs that failed together do not come back together. 1 is any wait
            from none to the whole.

    Raises:
        ArgumentError: what cannot be one of these.
    """

    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _check_wait("first", self.first)
        _check_wait("longest", self.longest)
        if not timedelta(0) < self.first <= self.longest:
            raise ArgumentError(
                f"first is longer than nothing, and no longer than longest: {self.first!r}, "
                f"{self.longest!r}"
            )
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise ArgumentError(f"factor is a number, 1 or more: {self.factor!r}")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ArgumentError(f"jitter is a share, from 0 to 1: {self.jitter!r}")

    def __call__(self, attempts: int) -> timedelta:
        """Return the wait after so many attempts."""
        return self._whole(attempts) * (1 - self.jitter * random.random())

    def _whole(self, attempts: int) -> timedelta:
        """Return the wait without jitter."""
        grown = min(max(attempts, 1), _MOST_ATTEMPTS) - 1
        try:
            seconds = self.first.total_seconds() * self.factor**grown
        except OverflowError:
            return self.longest
        longest = self.longest.total_seconds()
        return self.longest if seconds >= longest else timedelta(seconds=seconds)


def check_backoff(mapping: QueueMapping, backoff: Any) -> None:
    """Refuse what is no policy, and one for a class whose failed jobs cannot wait.

    Raises:
        ArgumentError: it cannot be called, or there is no RetryMixin or ScheduleMixin.
    """
    if not callable(backoff):
        raise ArgumentError(
            "a backoff is called with the number of attempts and returns a timedelta: "
            f"ConstantBackoff(..), ExponentialBackoff(..) or a function, not {backoff!r}"
        )
    mixins = {"attempts": "RetryMixin", "run_at": "ScheduleMixin"}
    missing = [mixin for role, mixin in mixins.items() if not mapping.has(role)]
    if missing:
        raise ArgumentError(
            f"a backoff delays the next attempt, which {mapping} cannot have: add "
            f"{' and '.join(missing)}, or leave backoff= out"
        )


def delay_after(backoff: Backoff, attempts: int) -> timedelta:
    """Ask a policy how long a job waits after so many attempts.

    Raises:
        ArgumentError: what it returned is no wait.
    """
    wait = backoff(attempts)
    _check_wait(f"what {backoff!r} returns for {attempts} attempts", wait)
    return wait


def delay_or_default(backoff: Backoff, attempts: int) -> timedelta:
    """Ask a policy likewise, and go by the default where it fails: the job has its own troubles."""
    try:
        return delay_after(backoff, attempts)
    except Exception as error:
        log.warning("a backoff failed, and the default is taken: %s", error, exc_info=error)
        return DEFAULT_BACKOFF(attempts)


def _check_wait(name: str, wait: Any) -> None:
    if not isinstance(wait, timedelta) or not timedelta(0) <= wait <= LONGEST_DELAY:
        raise ArgumentError(f"{name} is a timedelta from nothing to ten years: {wait!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: What a worker goes by that was told nothing else.
DEFAULT_BACKOFF = ExponentialBackoff()
