"""The fence: what a claim wrote, by which every later write knows its own row.

A fence holds the primary key, the status, the owner and the owner_date of a
claim. It is kept beside the entity, in ``inspect(job).info``, and never read
back from the entity or the database: so it survives ``expire_on_commit``,
costs no reload, and a row that meanwhile belongs to somebody else is not
mistaken for ours::

    fence = fence_of(job)                  # to another thread or process
    with_fence(session.get(Email, 1), fence)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import InstanceState

from .errors import ArgumentError, NotClaimed
from .mapping import QueueMapping, mapping_of

_INFO = "sa_jobqueue.fence"
_T = TypeVar("_T")
T = TypeVar("T")

Identity = tuple[Any, ...]


class Hold(ABC):
    """What keeps the rows of a claim that wrote nothing: locks of its connection."""

    @abstractmethod
    def still_held(
        self, connection: Connection, mapping: QueueMapping, identities: Sequence[Identity]
    ) -> list[Identity]:
        """Return those of the rows that this hold still keeps.

        Raises:
            NotClaimed: not on this connection, or not in this transaction.
        """

    @abstractmethod
    def let_go(
        self,
        connection: Connection,
        mapping: QueueMapping,
        identities: Sequence[Identity],
        when: LetGo,
    ) -> None:
        """Free the rows, once their change was written."""


class LetGo(Enum):
    """When a change frees the rows of an unmarked claim."""

    AT_COMMIT = auto()
    AT_END = auto()  # of the transaction, however it ends
    NOW = auto()
    NEVER = auto()


@dataclass(eq=False)
class Token:
    """What all jobs of one claim have in common.

    Attributes:
        status: the status that the claim wrote, or left where it wrote nothing.
        owner: as the claim wrote it; None in an unmarked claim without one.
        dates: every owner_date that the claim has had. A renewal adds one
            before it writes it, so that the handler's own finish is accepted
            while a heartbeat in another session is in flight, committed or
            rolled back.
        hold: what keeps the rows of an unmarked claim.
    """

    status: str
    owner: str | None
    dates: list[datetime] = field(default_factory=list)
    hold: Hold | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.hold is not None:
            raise ArgumentError(
                "a claim that wrote nothing lives in its connection and cannot be carried "
                "to another process"
            )
        return Token, (self.status, self.owner, self.dates)


@dataclass(frozen=True, eq=False)
class Fence:
    """One claimed job, to be finished without its entity.

    Attributes:
        entity: the mapped class.
        identity: the primary key's values.
        token: shared with the other jobs of the same claim.
    """

    entity: type[Any]
    identity: tuple[Any, ...]
    token: Token

    @property
    def owner(self) -> str | None:
        """The owner, as the claim wrote it."""
        return self.token.owner

    @property
    def owner_date(self) -> datetime | None:
        """The time of the claim, or of its last renewal through this fence."""
        return self.token.dates[-1] if self.token.dates else None


class Claim(Sequence[T], Generic[T]):
    """The jobs of one claim, in claim order.

    Attributes:
        candidates: how many rows were looked at, None where the strategy
            cannot know.
        lost: how many of those others had first; None likewise. Many lost
            ones tell that there are too many claimers for this batch size.
        fences: the fence of each job, in the same order.
    """

    def __init__(
        self,
        jobs: Sequence[T],
        fences: Sequence[Fence],
        *,
        candidates: int | None = None,
        lost: int | None = None,
    ) -> None:
        self._jobs = tuple(jobs)
        self.fences = tuple(fences)
        self.candidates = candidates
        self.lost = lost

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[T]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return f"<Claim of {len(self)} jobs, candidates={self.candidates}, lost={self.lost}>"

    def first(self) -> T | None:
        """Return the first job, None if nothing was claimed."""
        return self._jobs[0] if self._jobs else None


def fence_of(job: Any) -> Fence:
    """Return the fence of a claimed entity.

    Raises:
        NotClaimed: the entity was not claimed itself: it comes from another
            session, a merge or a query, or was never claimed.
    """
    if isinstance(job, Fence):
        return job
    fence = _state_of(job).info.get(_INFO)
    if fence is None:
        raise NotClaimed(
            f"{_described(job)} carries no fence: it was not claimed through this entity. "
            "claim() it, find an owner's claims with claimed_by(), or carry the fence over "
            "with with_fence(job, fence_of(claimed_job))"
        )
    assert isinstance(fence, Fence)
    return fence


def with_fence(job: _T, fence: Fence) -> _T:
    """Give an entity the fence of a claim made elsewhere, and return it.

    Raises:
        ArgumentError: the fence belongs to another row.
    """
    state = _state_of(job)
    of_class = state.mapper.base_mapper is sa_inspect(fence.entity).base_mapper
    if not of_class or state.identity is None or tuple(state.identity) != fence.identity:
        raise ArgumentError(
            f"{_described(job)} is not the row {fence.identity!r} that the fence was made for"
        )
    state.info[_INFO] = fence
    return job


def put_up(jobs: Sequence[Any], fences: Sequence[Fence]) -> None:
    """Put fences around entities that were just claimed."""
    for job, fence in zip(jobs, fences, strict=True):
        sa_inspect(job).info[_INFO] = fence


def fenced(jobs: Any) -> list[tuple[Any, Fence]]:
    """Pair each given job with its fence.

    Args:
        jobs: an entity, a fence, a Claim, or an iterable of those.
    """
    if isinstance(jobs, Fence):
        return [(jobs, jobs)]
    if isinstance(jobs, Claim):
        return list(zip(jobs, jobs.fences, strict=True))
    if _is_mapped(jobs):
        return [(jobs, fence_of(jobs))]
    if not isinstance(jobs, Iterable):
        raise _no_job(jobs)
    pairs: list[tuple[Any, Fence]] = []
    for job in jobs:
        pairs += fenced(job) if isinstance(job, Claim) else [(job, fence_of(job))]
    return pairs


def each(jobs: Any) -> Iterator[Any]:
    """Iterate over one job or many."""
    if isinstance(jobs, Iterable) and not _is_mapped(jobs):
        yield from jobs
    else:
        yield jobs


def identified(jobs: Any) -> list[tuple[Any, QueueMapping, tuple[Any, ...]]]:
    """Pair each given entity with its mapping and primary key, claimed or not."""
    found = []
    for job in each(jobs):
        if isinstance(job, Fence):
            found.append((job, mapping_of(job.entity), job.identity))
            continue
        state = _state_of(job)
        if state.identity is None:
            raise ArgumentError(f"{_described(job)} is not in the database yet; flush it first")
        found.append((job, mapping_of(state.mapper), tuple(state.identity)))
    return found


def _is_mapped(job: Any) -> bool:
    return isinstance(sa_inspect(job, raiseerr=False), InstanceState)


def _state_of(job: Any) -> InstanceState[Any]:
    try:
        state = sa_inspect(job)
    except NoInspectionAvailable:
        state = None
    if not isinstance(state, InstanceState):
        raise _no_job(job)
    return state


def _no_job(job: Any) -> ArgumentError:
    return ArgumentError(
        f"{job!r} is not a job: an entity, a fence or a Claim is needed; rows of "
        "claim_rows() are finished by their claim, or by claim.fences[i]"
    )


def _described(job: Any) -> str:
    state = sa_inspect(job)
    key = f" {', '.join(map(str, state.identity))}" if state.identity else ""
    return f"{type(job).__name__}{key}"
