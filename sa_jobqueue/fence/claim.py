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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from functools import cached_property, partial
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm.attributes import instance_state

from ..errors import ArgumentError, NotClaimed
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of

_INFO = "sa_jobqueue.fence"
_T = TypeVar("_T")
T = TypeVar("T")

Identity = tuple[Any, ...]


class Hold(ABC):
    """What keeps the rows of a claim that wrote nothing: locks of its connection.

    Attributes:
        rounds: the round that each row was claimed in, where the hold does not keep a
            new round from taking it.
    """

    rounds: Mapping[Identity, int] = MappingProxyType({})

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


@dataclass(frozen=True)
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


@dataclass(frozen=True, eq=False)
class Fenced:
    """Jobs behind one token: what a claim, or a part of it, keeps and a finish writes.

    Attributes:
        identities: the primary key of each job.
        jobs: entities, plain rows or fences.
        rows: they are all plain rows, in which nothing is shown.
        places: where each stood among the jobs that were given; empty: in this order.
    """

    mapping: QueueMapping
    token: Token
    identities: list[Identity]
    jobs: list[Any]
    rows: bool = False
    places: list[int] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.mapping.entity, self.token, self.identities, self.jobs, self.rows)
        return _fenced_again, given

    @property
    def placed(self) -> Iterator[tuple[int, Any, Identity]]:
        """Each job with its place and its key."""
        return zip(self.places or range(len(self.jobs)), self.jobs, self.identities, strict=True)

    @property
    def has_entities(self) -> bool:
        """Whether any of the jobs is an entity."""
        entity = self.mapping.entity
        return not self.rows and any(isinstance(job, entity) for job in self.jobs)

    @property
    def fences(self) -> Iterator[Fence]:
        """The fence of each job."""
        entity = self.mapping.entity
        return (Fence(entity, identity, self.token) for identity in self.identities)


class Claim(Sequence[T], Generic[T]):
    """The jobs of one claim, in claim order.

    Attributes:
        fenced: the jobs by their tokens, in claim order.
        candidates: how many rows were looked at, None where the strategy
            cannot know.
        lost: how many of those others had first; None likewise. Many lost
            ones tell that there are too many claimers for this batch size.
    """

    def __init__(
        self,
        fenced: Sequence[Fenced] = (),
        *,
        candidates: int | None = None,
        lost: int | None = None,
    ) -> None:
        self.fenced = fenced
        self._jobs: tuple[T, ...] = tuple(chain.from_iterable(part.jobs for part in fenced))
        self.candidates = candidates
        self.lost = lost

    @cached_property
    def fences(self) -> tuple[Fence, ...]:
        """The fence of each job, in the same order."""
        return tuple(chain.from_iterable(part.fences for part in self.fenced))

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
    state = _state_of(job)
    return Fence(*_fence_in(state))


def _fence_in(state: InstanceState[Any]) -> tuple[type[Any], Identity, Token]:
    """Return the class, the key and the token that an entity was claimed with."""
    found = state.info.get(_INFO)
    if found is None:
        raise NotClaimed(
            f"{_described(state)} carries no fence: it was not claimed through this entity. "
            "claim() it, find an owner's claims with claimed_by(), or carry the fence over "
            "with with_fence(job, fence_of(claimed_job))"
        )
    entity, identity, token = found
    return entity, identity, token


def with_fence(job: _T, fence: Fence) -> _T:
    """Give an entity the fence of a claim made elsewhere, and return it.

    Raises:
        ArgumentError: the fence belongs to another row.
    """
    state = _state_of(job)
    of_class = state.mapper.base_mapper is sa_inspect(fence.entity).base_mapper
    if not of_class or state.identity is None or tuple(state.identity) != fence.identity:
        raise ArgumentError(
            f"{_described(state)} is not the row {fence.identity!r} that the fence was made for"
        )
    state.info[_INFO] = (fence.entity, fence.identity, fence.token)
    return job


def put_up(part: Fenced) -> list[Callable[[], None]]:
    """Put fences around entities that were just claimed.

    Returns:
        What brings back the fences of earlier claims: a claim that is rolled back has
        ended none.
    """
    entity, token = part.mapping.entity, part.token
    earlier: list[Callable[[], None]] = []
    for job, identity in zip(part.jobs, part.identities, strict=True):
        info = instance_state(job).info
        if _INFO in info:
            earlier.append(partial(info.__setitem__, _INFO, info[_INFO]))
        info[_INFO] = (entity, identity, token)
    return earlier


def fenced(jobs: Any) -> list[Fenced]:
    """Sort the given jobs by their tokens.

    Args:
        jobs: an entity, a fence, a Claim, or an iterable of those.

    Raises:
        NotClaimed: an entity without a fence.
        ArgumentError: what is no job.
    """
    if isinstance(jobs, Claim) and len(jobs.fenced) < 2:
        return list(jobs.fenced)
    if isinstance(jobs, Fence) or _is_mapped(jobs) or isinstance(jobs, Claim):
        jobs = (jobs,)
    elif not isinstance(jobs, Iterable):
        raise _no_job(jobs)
    found: dict[int, Fenced] = {}
    place = count()
    for job in jobs:
        for part in _parts_of(job):
            own = found.get(id(part.token))
            if own is None:
                own = found[id(part.token)] = Fenced(part.mapping, part.token, [], [])
            own.identities.extend(part.identities)
            own.jobs.extend(part.jobs)
            own.places.extend(islice(place, len(part.jobs)))
    return list(found.values())


def by_mapping(parts: Sequence[Fenced]) -> list[tuple[QueueMapping, list[Fenced]]]:
    """Sort jobs behind their tokens by their classes."""
    groups: dict[QueueMapping, list[Fenced]] = {}
    for part in parts:
        groups.setdefault(part.mapping, []).append(part)
    return list(groups.items())


def _fenced_again(entity: type[Any], *rest: Any) -> Fenced:
    """Make what was pickled."""
    return Fenced(any_mapping_of(entity), *rest)


def _parts_of(job: Any) -> Sequence[Fenced]:
    if isinstance(job, Claim):
        return job.fenced
    if isinstance(job, Fence):
        return [Fenced(any_mapping_of(job.entity), job.token, [job.identity], [job])]
    entity, identity, token = _fence_in(_state_of(job))
    return [Fenced(any_mapping_of(entity), token, [identity], [job])]


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
            raise ArgumentError(f"{_described(state)} is not in the database yet; flush it first")
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


def _described(state: InstanceState[Any]) -> str:
    key = f" {', '.join(map(str, state.identity))}" if state.identity else ""
    return f"{state.class_.__name__}{key}"
