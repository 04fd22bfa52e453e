"""The jobs of a claim, and the fence that each claimed entity carries.

The fence of an entity is kept beside it, in ``inspect(job).info``, and never read back
from its attributes or from the database. So it survives ``expire_on_commit``, it costs no
reload, and a row that belongs to somebody else by now is not mistaken for ours::

    fence = fence_of(job)                  # to another thread or process
    with_fence(session.get(Email, 1), fence)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm.attributes import instance_state

from ..errors import ArgumentError, NotClaimed
from ..model.keys import repeated_key
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from .token import Fence, Identity, Token

_INFO = "sa_jobqueue.fence"
_T = TypeVar("_T")
T = TypeVar("T")


# Not frozen, for the same reason as a Request.
@dataclass(eq=False, slots=True)
class FencedJobs:
    """Jobs behind one token: what a claim, or a part of it, keeps and a finish writes.

    Attributes:
        identities: the primary key of each job.
        jobs: entities, plain rows or fences.
        rows: whether the jobs are all plain rows, which show no new values.
        indices: the index of each job among the jobs that a verb was given; empty: in
            this order.
    """

    mapping: QueueMapping
    token: Token
    identities: list[Identity]
    jobs: list[Any]
    rows: bool = False
    indices: list[int] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.mapping.entity, self.token, self.identities, self.jobs, self.rows)
        return _unpickled, given

    @property
    def indexed(self) -> Iterator[tuple[int, Any, Identity]]:
        """Each job with its index and its key."""
        return zip(self.indices or range(len(self.jobs)), self.jobs, self.identities, strict=True)

    def divided(self, groups: Sequence[Any]) -> dict[Any, FencedJobs]:
        """Divide the jobs by their groups, which are given in the order of the jobs."""
        found: dict[Any, FencedJobs] = {}
        for group, (index, job, identity) in zip(groups, self.indexed, strict=True):
            alike = found.get(group)
            if alike is None:
                alike = found[group] = FencedJobs(self.mapping, self.token, [], [], self.rows)
            alike.identities.append(identity)
            alike.jobs.append(job)
            alike.indices.append(index)
        return found

    @property
    def has_entities(self) -> bool:
        """Whether any of the jobs is an entity."""
        entity = self.mapping.entity
        if self.rows or not self.jobs:
            return False
        return isinstance(self.jobs[0], entity) or any(isinstance(job, entity) for job in self.jobs)

    @property
    def fences(self) -> Iterator[Fence]:
        """The fence of each job."""
        entity = self.mapping.entity
        return (Fence(entity, identity, self.token) for identity in self.identities)


class Claim(Sequence[T], Generic[T]):
    """The jobs of one claim, in claim order.

    Attributes:
        parts: the jobs by their tokens, in claim order.
        candidates: how many rows were looked at; None where the strategy
            cannot know.
        lost: how many of the candidates another claimer had first; None where
            the strategy cannot know. Many lost candidates mean too many claimers
            for this batch size.
    """

    def __init__(
        self,
        parts: Sequence[FencedJobs] = (),
        *,
        candidates: int | None = None,
        lost: int | None = None,
    ) -> None:
        self.parts = parts
        jobs = parts[0].jobs if len(parts) == 1 else chain.from_iterable(p.jobs for p in parts)
        self._jobs: tuple[T, ...] = tuple(jobs)
        self.candidates = candidates
        self.lost = lost

    @cached_property
    def fences(self) -> tuple[Fence, ...]:
        """The fence of each job, in the same order."""
        return tuple(chain.from_iterable(part.fences for part in self.parts))

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
        NotClaimed: no claim returned this very entity: it comes from another
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
            f"{_row_name(state)} has no fence: it was not claimed through this entity. claim() it, "
            "get an owner's claims by claimed_by(), or copy the fence by "
            "with_fence(job, fence_of(claimed_job))"
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
            f"{_row_name(state)} is not the row {fence.identity!r} that the fence was made for"
        )
    state.info[_INFO] = (fence.entity, fence.identity, fence.token)
    return job


def attach_fences(part: FencedJobs) -> list[Callable[[], None]]:
    """Attach their fences to entities that were just claimed.

    Returns:
        Undo callbacks: a rolled-back claim must restore the earlier fences.

    Raises:
        UnsupportedDatabase: an entity stands for two rows, with one primary key.
    """
    entity, token = part.mapping.entity, part.token
    earlier: list[Callable[[], None]] = []
    for job, identity in zip(part.jobs, part.identities, strict=True):
        info = instance_state(job).info
        if _INFO in info:
            if info[_INFO][2] is token:
                raise repeated_key(part.mapping)
            earlier.append(partial(info.__setitem__, _INFO, info[_INFO]))
        info[_INFO] = (entity, identity, token)
    return earlier


def jobs_by_token(jobs: Any) -> list[FencedJobs]:
    """Group the given jobs by their tokens.

    Args:
        jobs: an entity, a fence, a Claim, or an iterable of those.

    Raises:
        NotClaimed: an entity has no fence.
        ArgumentError: something given is not a job.
    """
    if isinstance(jobs, Claim) and len(jobs.parts) < 2:
        return list(jobs.parts)
    if isinstance(jobs, Fence) or _is_mapped(jobs) or isinstance(jobs, Claim):
        jobs = (jobs,)
    elif not isinstance(jobs, Iterable):
        raise _not_a_job(jobs)
    found: dict[int, FencedJobs] = {}
    index = count()
    for job in jobs:
        if isinstance(job, Claim):
            for part in job.parts:
                own = _own_part(found, part.mapping.entity, part.token)
                own.identities.extend(part.identities)
                own.jobs.extend(part.jobs)
                own.indices.extend(islice(index, len(part.jobs)))
            continue
        entity, identity, token = _claimed_as(job)
        own = found.get(id(token)) or _own_part(found, entity, token)
        own.identities.append(identity)
        own.jobs.append(job)
        own.indices.append(next(index))
    return list(found.values())


def _own_part(found: dict[int, FencedJobs], entity: type[Any], token: Token) -> FencedJobs:
    """Return the part of a token; a new one is added to those found."""
    own = found.get(id(token))
    if own is None:
        own = found[id(token)] = FencedJobs(any_mapping_of(entity), token, [], [])
    return own


def _claimed_as(job: Any) -> tuple[type[Any], Identity, Token]:
    """Return the class, the key and the token of an entity or a fence."""
    if isinstance(job, Fence):
        return job.entity, job.identity, job.token
    return _fence_in(_state_of(job))


def by_mapping(parts: Sequence[FencedJobs]) -> list[tuple[QueueMapping, list[FencedJobs]]]:
    """Group the parts by their mapped classes."""
    if len(parts) == 1:
        return [(parts[0].mapping, [parts[0]])]
    groups: dict[QueueMapping, list[FencedJobs]] = {}
    for part in parts:
        groups.setdefault(part.mapping, []).append(part)
    return list(groups.items())


def _unpickled(entity: type[Any], *rest: Any) -> FencedJobs:
    return FencedJobs(any_mapping_of(entity), *rest)


def each_job(jobs: Any) -> Iterator[Any]:
    """Iterate over one job or many."""
    if isinstance(jobs, Iterable) and not _is_mapped(jobs):
        yield from jobs
    else:
        yield jobs


def jobs_of(mapping: QueueMapping, jobs: Any) -> list[tuple[Any, QueueMapping, tuple[Any, ...]]]:
    """Return each given job with its mapping and primary key; all are jobs of one table.

    Raises:
        ArgumentError: a job of another table, too.
    """
    found = jobs_with_keys(jobs)
    base = mapping.mapper.base_mapper
    for job, of_job, _ in found:
        if of_job.mapper.base_mapper is not base:
            raise ArgumentError(f"{job!r} is not a job of this queue, whose class is {mapping}")
    return found


def jobs_with_keys(jobs: Any) -> list[tuple[Any, QueueMapping, tuple[Any, ...]]]:
    """Return each given job with its mapping and primary key, whether claimed or not.

    Raises:
        ArgumentError: something given is not a job, or is not in the database yet.
    """
    found = []
    for job in each_job(jobs):
        if isinstance(job, Fence):
            found.append((job, mapping_of(job.entity), job.identity))
            continue
        state = _state_of(job)
        if state.identity is None:
            raise ArgumentError(f"{_row_name(state)} is not in the database yet; flush it first")
        found.append((job, mapping_of(state.mapper), tuple(state.identity)))
    return found


def _is_mapped(job: Any) -> bool:
    return isinstance(sa_inspect(job, raiseerr=False), InstanceState)


def _state_of(job: Any) -> InstanceState[Any]:
    try:
        state = instance_state(job)
    except AttributeError:
        state = None
    if not isinstance(state, InstanceState):
        raise _not_a_job(job)
    return state


def _not_a_job(job: Any) -> ArgumentError:
    return ArgumentError(
        f"{job!r} is not a job: an entity, a fence or a Claim is needed; rows of "
        "claim_rows() are finished by their claim, or by claim.fences[i]"
    )


def _row_name(state: InstanceState[Any]) -> str:
    key = f" {', '.join(map(str, state.identity))}" if state.identity else ""
    return f"{state.class_.__name__}{key}"
