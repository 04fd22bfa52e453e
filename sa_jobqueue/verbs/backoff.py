"""How long a failed job waits for its next attempt: its delay.

::

    ConstantBackoff(timedelta(minutes=5))
    ExponentialBackoff(timedelta(seconds=2), longest=timedelta(minutes=10))

    queue = JobQueue(Email, backoff=ConstantBackoff(timedelta(minutes=5)))
    queue.fail(session, email, error=error)  # unclaimed again, and due in about five minutes

A backoff is called with the number of attempts that a job has had, this one
included, and returns a timedelta. So a function of your own does as well as the two here.
A delay is never negative and never longer than ten years.
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
from ..fence.claim import FencedJobs
from ..fence.statements import lock_rows
from ..fence.token import Identity
from ..model.mapping import QueueMapping
from ..sessions.writer import AnyConnection, writing

log = logging.getLogger("sa_jobqueue.failure")

#: Anything that makes a delay of the number of attempts.
Backoff: TypeAlias = Callable[[int], timedelta]

#: The longest delay: some databases could not store the time that a longer one leads to.
LONGEST_DELAY = timedelta(days=3650)

#: The longest lease, runtime and age: databases cannot compute every time that is further away.
LONGEST_AGE = timedelta(days=36_500)

#: By which share of itself a delay may be shorter, where nobody says.
JITTER = 0.1

#: The most attempts that the column can count.
_MOST_ATTEMPTS = 2**31

_KEYS = "failed_keys"


@dataclass(frozen=True)
class ConstantBackoff:
    """Wait equally long after each attempt, or up to a tenth shorter.

    Attributes:
        delay: how long, at most.
        jitter: as for :class:`ExponentialBackoff`.

    Raises:
        ArgumentError: a value is of the wrong type or out of its range.
    """

    delay: timedelta
    jitter: float = JITTER

    def __post_init__(self) -> None:
        check_delay("delay", self.delay)
        _check_jitter(self.jitter)

    def __call__(self, attempts: int) -> timedelta:
        """Return the delay after so many attempts."""
        return _shorter(self.delay, self.jitter)


@dataclass(frozen=True)
class ExponentialBackoff:
    """Wait `factor` times as long after each further attempt.

    By default 1, 2, 4, .. seconds, at most an hour, each up to a tenth shorter.

    Attributes:
        first: the delay after the first attempt.
        factor: by how much the delay grows, at least 1.
        longest: no delay is longer.
        jitter: by which share of itself, from 0 to 1, a delay may be shorter, so
            that jobs which failed together do not come back together. With 1 it
            is anything from nothing to the whole.

    Raises:
        ArgumentError: a value is of the wrong type or out of its range.
    """

    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(hours=1)
    jitter: float = JITTER

    def __post_init__(self) -> None:
        check_delay("first", self.first)
        check_delay("longest", self.longest)
        if not timedelta(0) < self.first <= self.longest:
            raise ArgumentError(
                f"first must be longer than zero, and not longer than longest: {self.first!r}, "
                f"{self.longest!r}"
            )
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise ArgumentError(f"factor must be a number, 1 or more: {self.factor!r}")
        _check_jitter(self.jitter)

    def __call__(self, attempts: int) -> timedelta:
        """Return the delay after so many attempts."""
        return _shorter(self._without_jitter(attempts), self.jitter)

    def _without_jitter(self, attempts: int) -> timedelta:
        grown = min(max(attempts, 1), _MOST_ATTEMPTS) - 1
        try:
            seconds = self.first.total_seconds() * self.factor**grown
        except OverflowError:
            return self.longest
        longest = self.longest.total_seconds()
        return self.longest if seconds >= longest else timedelta(seconds=seconds)


def check_backoff(mapping: QueueMapping, backoff: Any) -> None:
    """Refuse what is not a backoff, and a class whose failed jobs cannot be delayed.

    Raises:
        ArgumentError: it cannot be called, or there is no RetryMixin.
    """
    if not callable(backoff):
        raise ArgumentError(
            "a backoff is ConstantBackoff(..), ExponentialBackoff(..), or a function that gets the "
            f"number of attempts and returns a timedelta, not {backoff!r}"
        )
    if not mapping.has("attempts"):
        raise ArgumentError(
            f"a backoff delays the next attempt, which {mapping} cannot have: add RetryMixin, or "
            "leave backoff= out"
        )


def delay_after(backoff: Backoff, attempts: int) -> timedelta:
    """Ask a backoff for the delay after so many attempts.

    Raises:
        ArgumentError: what it returned is not a delay.
    """
    delay = backoff(attempts)
    check_delay(f"what {backoff!r} returns for {attempts} attempts", delay)
    return delay


def delay_or_default(backoff: Backoff, attempts: int) -> timedelta:
    """Ask a backoff for a delay; take the default if it fails: the job has its own troubles."""
    try:
        return delay_after(backoff, attempts)
    except Exception as error:
        log.warning("a backoff failed, and the default backoff is used: %s", error, exc_info=error)
        return DEFAULT_BACKOFF(attempts)


def check_delay(name: str, delay: Any) -> None:
    """Refuse a delay that is negative or too long for a database.

    Raises:
        ArgumentError: it names the delay.
    """
    if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= LONGEST_DELAY:
        raise ArgumentError(f"{name} must be a timedelta from zero to ten years: {delay!r}")


def _check_jitter(jitter: Any) -> None:
    if not _is_number(jitter) or not 0 <= jitter <= 1:
        raise ArgumentError(f"jitter must be a share, from 0 to 1: {jitter!r}")


def _shorter(delay: timedelta, jitter: float) -> timedelta:
    """Return a delay, shorter by a random share: jobs that failed together come back apart."""
    return delay * (1 - jitter * random.random())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: The backoff where none was given: no job is tried again without a wait.
DEFAULT_BACKOFF = ExponentialBackoff()


# -- the delays of several failed jobs ------------------------------------------


def by_delay(
    session: AnyConnection, mapping: QueueMapping, parts: list[FencedJobs], backoff: Backoff | None
) -> dict[timedelta, list[FencedJobs]]:
    """Group failed jobs of a class by their delays: each is asked for by the job's own attempts.

    Jobs without RetryMixin are not tried again, and have no delay.

    Raises:
        ArgumentError: a class whose jobs cannot be delayed, or a backoff that does not
            return a delay.
    """
    if backoff is not None:
        check_backoff(mapping, backoff)
    if not mapping.has("attempts"):
        return {timedelta(0): parts}
    delays: dict[timedelta, list[FencedJobs]] = {}
    for part in parts:
        attempts = _attempts(session, part)
        delay_of = {
            key: delay_after(backoff or DEFAULT_BACKOFF, count) for key, count in attempts.items()
        }
        divided = part.divided([delay_of[identity] for identity in part.identities])
        for delay, alike in divided.items():
            delays.setdefault(delay, []).append(alike)
    return delays


def _attempts(session: AnyConnection, part: FencedJobs) -> dict[Identity, int]:
    """Read how often jobs were tried, this attempt included; 1 where the row is gone.

    Read from the rows, because entities may be expired and fences have no attempts. The
    rows are locked in the order of their keys, so that the writes may come in any order.
    """
    uncounted = part.token.hold is not None  # an unmarked claim wrote nothing
    with writing(session, part.mapping, rows=True, shard_by=part.jobs) as writer:
        writer.lock_writes(part.mapping.table)
        found = lock_rows(writer, part.mapping, ("attempts",), dict.fromkeys(part.identities))
    return {key: found[key][0] + uncounted if key in found else 1 for key in part.identities}


def check_durations(
    *,
    zero: bool,
    none: bool = False,
    longest: timedelta = timedelta.max,
    **durations: timedelta | None,
) -> None:
    """Refuse durations that are negative, not longer than zero, or too long.

    Args:
        zero: whether zero is allowed.
        none: whether None is allowed.

    Raises:
        ArgumentError: it names the argument.
    """
    shortest = timedelta(0) if zero else timedelta.resolution
    what = f"{'of at least zero' if zero else 'longer than zero'}{', or None' if none else ''}"
    for name, duration in durations.items():
        if duration is None and none:
            continue
        if not isinstance(duration, timedelta) or duration < shortest:
            is_number = isinstance(duration, int | float)
            hint = f": write timedelta(seconds={duration!r})" if is_number else ""
            raise ArgumentError(f"{name}= takes a timedelta {what}, not {duration!r}{hint}")
        if duration > longest:
            raise ArgumentError(f"{name}= takes at most a hundred years, not {duration!r}")
