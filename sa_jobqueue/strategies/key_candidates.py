"""Which candidates a claim takes, so that no serial key gets more jobs than it allows.

The bookkeeping of :mod:`.per_key`, without a database.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .key_limits import KeyLimit

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
