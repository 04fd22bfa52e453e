"""The limits of serial keys: how serial_by=, limit_by= and on_retry= are read.

::

    JobQueue(Email, serial_by=Email.account_id)                  # one job at a time, in order
    JobQueue(Email, limit_by={Email.account_id: 3})              # at most three at a time
    JobQueue(Email, serial_by=Email.account_id, limit_by={(Email.region, Email.host): 5})

A serial key is the value of a column, or of several columns given as a tuple. A job
with NULL in one of them has no serial key, and no limit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ArgumentError
from ..model.mapping import QueueMapping

#: What others of its serial key do while a job is in its retry delay: wait for it, or go on.
WAIT, SKIP = "wait", "skip"


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """How many jobs of a serial key may be claimed at a time.

    Attributes:
        columns: the attributes whose values are the serial key.
        most: the number.
        serial: the jobs of a key are claimed in their order, one by one.
    """

    columns: tuple[InstrumentedAttribute[Any], ...]
    most: int
    serial: bool = False

    def __str__(self) -> str:
        names = [column.key for column in self.columns]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"


def key_limits(
    mapping: QueueMapping, serial_by: Any, limit_by: Mapping[Any, int] | None, on_retry: str
) -> tuple[KeyLimit, ...]:
    """Read the arguments of a queue.

    Raises:
        ArgumentError: an argument is wrong, or needs a mixin that the class does not have.
    """
    limits = list(_limits(mapping, serial_by, limit_by))
    _check_on_retry(mapping, serial_by, on_retry)
    return tuple(limits)


def arguments_text(limits: tuple[KeyLimit, ...], on_retry: str) -> str:
    """Write limits as the arguments that make them; empty where there are none."""
    serial = [f"serial_by={limit}" for limit in limits if limit.serial]
    counted = ", ".join(f"{limit}: {limit.most}" for limit in limits if not limit.serial)
    words = [*serial, *([f"limit_by={{{counted}}}"] if counted else [])]
    if on_retry != WAIT:
        words.append(f"on_retry={on_retry!r}")
    return "".join(f", {word}" for word in words)


def _limits(
    mapping: QueueMapping, serial_by: Any, limit_by: Mapping[Any, int] | None
) -> Iterator[KeyLimit]:
    if serial_by is not None:
        yield KeyLimit(_columns(mapping, "serial_by", serial_by), 1, serial=True)
    if limit_by is None:
        return
    if not isinstance(limit_by, Mapping) or not limit_by:
        raise ArgumentError(
            f"limit_by= takes a dict, as in {{{mapping}.account_id: 3}}, not {limit_by!r}"
        )
    for key, most in limit_by.items():
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ArgumentError(f"a limit of limit_by= is a number, at least 1: {most!r}")
        yield KeyLimit(_columns(mapping, "limit_by", key), most)


def _columns(
    mapping: QueueMapping, option: str, key: Any
) -> tuple[InstrumentedAttribute[Any], ...]:
    given = key if isinstance(key, tuple) else (key,)
    if not given:
        raise ArgumentError(f"{option}= names no column of {mapping}")
    return tuple(_column(mapping, option, attribute) for attribute in given)


def _column(mapping: QueueMapping, option: str, given: Any) -> InstrumentedAttribute[Any]:
    mappers: list[Any] = list(mapping.mapper.iterate_to_root())
    known = isinstance(given, InstrumentedAttribute) and given.parent in mappers
    column = mapping.mapper.columns.get(given.key) if known else None
    if column is None:
        raise ArgumentError(
            f"{option}= takes attributes of {mapping}, as in {mapping}.account_id, "
            f"or a tuple of them, not {given!r}"
        )
    if getattr(column, "table", None) is not mapping.table:
        raise ArgumentError(
            f"{option}= needs columns of {mapping.table.description!r}, the table that holds the "
            f"status, and {mapping}.{given.key} is in another table: keep the key in "
            f"{mapping.table.description!r} too"
        )
    attribute: InstrumentedAttribute[Any] = getattr(mapping.entity, given.key)
    return attribute


def _check_on_retry(mapping: QueueMapping, serial_by: Any, on_retry: str) -> None:
    if on_retry not in (WAIT, SKIP):
        raise ArgumentError(f"on_retry= is {WAIT!r} or {SKIP!r}, not {on_retry!r}")
    if on_retry == WAIT:
        return
    if serial_by is None:
        raise ArgumentError(
            "on_retry= decides whether the next jobs of a key wait while a failed job is in its "
            "retry delay; without serial_by= they never wait: leave on_retry= out"
        )
    if not mapping.has("attempts"):
        raise ArgumentError(
            f"on_retry='skip' passes over jobs in their retry delay, and jobs of {mapping} have "
            "no retry delay: add RetryMixin"
        )


# Which candidates a claim takes, so that no serial key gets more jobs than it allows.
#
# The bookkeeping of :mod:`.per_key`, without a database.

Key: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Candidate:
    """A job that may be the next of its serial keys.

    Attributes:
        key: its primary key.
        locks: for each limit, the name of the lock of its serial key; None: it has no key.
        tried: whether it was claimed before.
        claimed: for each limit, how many jobs of the serial key are claimed.
    """

    key: Key
    locks: tuple[Any, ...]
    tried: bool
    claimed: tuple[int, ...] = ()

    @property
    def limited(self) -> list[tuple[int, Any]]:
        """The names of its locks, each with the index of the limit."""
        return [(index, name) for index, name in enumerate(self.locks) if name is not None]


@dataclass
class CandidatePicker:
    """Picks candidates as long as their keys allow, and remembers which keys it got.

    Attributes:
        limit: how many jobs are wanted.
        taken: the candidates whose keys are locked for us.
        busy: the keys that others have locked, each with the index of the limit.
        skipped: the primary keys of jobs that are not tried again.
        tried: for how many candidates keys were asked for.
    """

    limits: tuple[KeyLimit, ...]
    limit: int
    taken: list[Candidate] = field(default_factory=list)
    busy: set[tuple[int, Any]] = field(default_factory=set)
    skipped: set[Key] = field(default_factory=set)
    tried: int = 0
    _counted: Counter[tuple[int, Any]] = field(default_factory=Counter)

    def start(self) -> None:
        """Begin another try: forget what is taken and busy."""
        self.taken = []
        self.busy = set()
        self._counted = Counter()

    @property
    def has_enough(self) -> bool:
        """Whether as many are taken as are wanted."""
        return len(self.taken) >= self.limit

    @property
    def may_soon_allow(self) -> bool:
        """Whether a busy key allows several jobs: those who claim from it may leave some."""
        return any(self.limits[index].most > 1 for index, _ in self.busy)

    def pick(self, waiting: deque[Candidate]) -> list[Candidate]:
        """Pick as many candidates as are still wanted, from the left of `waiting`."""
        taken = {job.key for job in self.taken}  # the first job of a key may come twice
        picked: list[Candidate] = []
        while waiting and len(self.taken) + len(picked) < self.limit:
            job = waiting.popleft()
            if job.key not in taken and self._fits(job):
                self._counted.update(job.limited)
                picked.append(job)
        self.tried += len(picked)
        return picked

    def settle(self, picked: Sequence[Candidate], locked: set[Any]) -> None:
        """Take the picked candidates whose serial keys are all in `locked`."""
        for job in picked:
            busy = [limited for limited in job.limited if limited[1] not in locked]
            if busy:
                self.busy.update(busy)
                self._counted.subtract(job.limited)
            else:
                self.taken.append(job)

    def still_fitting(self, allowed: Sequence[Candidate]) -> list[Key]:
        """Return the primary keys of those candidates that fit what is claimed now.

        Their keys are locked for us, so the numbers of claimed jobs cannot change any more.
        """
        self._counted = Counter()
        fitting = []
        for job in allowed:
            if self._fits(job):
                self._counted.update(job.limited)
                fitting.append(job.key)
        return fitting

    def has_room(self, job: Candidate) -> bool:
        """Tell whether the keys of a job allow one more."""
        return all(
            limited not in self.busy
            and job.claimed[limited[0]] + self._counted[limited] < self.limits[limited[0]].most
            for limited in job.limited
        )

    def _fits(self, job: Candidate) -> bool:
        return job.key not in self.skipped and self.has_room(job)
