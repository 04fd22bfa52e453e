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
from datetime import timedelta
from functools import cached_property, partial
from itertools import chain, count
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm.attributes import instance_state

from ..errors import ArgumentError, NotClaimed
from ..model.keys import repeated_key
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..sessions.writer import shard_of
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
        for group, each in zip(groups, self.indexed, strict=True):
            if group not in found:
                found[group] = FencedJobs(self.mapping, self.token, [], [], self.rows)
            found[group].add(*each)
        return found

    def add(self, index: int, job: Any, identity: Identity) -> None:
        """Add a job, with its index among the jobs that a verb was given."""
        self.indices.append(index)
        self.jobs.append(job)
        self.identities.append(identity)

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
        parts: the jobs by their tokens, in claim order.
        candidates: how many rows were looked at; None where the strategy
            cannot know.
        lost: how many of the candidates another claimer had first; None where
            the strategy cannot know. Many lost candidates mean too many claimers
            for this batch size.
        refills_in: when the queue's rate allows one more job; None: it has not limited the claim.
    """

    def __init__(
        self,
        parts: Sequence[FencedJobs] = (),
        *,
        candidates: int | None = None,
        lost: int | None = None,
        refills_in: timedelta | None = None,
    ) -> None:
        self.parts = parts
        jobs = parts[0].jobs if len(parts) == 1 else chain.from_iterable(p.jobs for p in parts)
        self._jobs: tuple[T, ...] = tuple(jobs)
        self.candidates = candidates
        self.lost = lost
        self.refills_in = refills_in

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
    return job if isinstance(job, Fence) else Fence(*_parts_of_fence(job))


def _parts_of_fence(job: Any) -> tuple[type[Any], Identity, Token]:
    """Return the parts of a job's fence; to make a Fence of them for each job costs some time."""
    if isinstance(job, Fence):
        return job
    state = _state_of(job)
    found: tuple[type[Any], Identity, Token] | None = state.info.get(_INFO)
    if found is None:
        raise NotClaimed(
            f"{_row_name(state)} has no fence: it was not claimed through this entity. claim() it, "
            "get an owner's claims by claimed_by(), or copy the fence by "
            "with_fence(job, fence_of(claimed_job))"
        )
    return found


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
    state.info[_INFO] = fence
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
    found: dict[int, FencedJobs] = {}
    number = count()
    for given in (jobs,) if isinstance(jobs, Claim) else each_job(jobs):
        claimed = isinstance(given, Claim)
        fences = given.fences if claimed else [_parts_of_fence(given)]
        for job, (entity, identity, token) in zip(
            given if claimed else [given], fences, strict=True
        ):
            own = found.get(id(token))
            if own is None:
                own = found[id(token)] = FencedJobs(any_mapping_of(entity), token, [], [])
            own.add(next(number), job, identity)
    return list(found.values())


def by_mapping(parts: Sequence[FencedJobs]) -> list[tuple[QueueMapping, list[FencedJobs]]]:
    """Group the parts by their mapped classes, and by their shards."""
    if len(parts) == 1:
        return [(parts[0].mapping, [parts[0]])]
    groups: dict[Any, list[FencedJobs]] = {}
    for part in parts:
        groups.setdefault((part.mapping, shard_of(part.jobs[:1])), []).append(part)
    return [(mapping, of_class) for (mapping, _), of_class in groups.items()]


def _unpickled(entity: type[Any], *rest: Any) -> FencedJobs:
    return FencedJobs(any_mapping_of(entity), *rest)


def each_job(jobs: Any) -> Iterable[Any]:
    """Return one job, or many, as an iterable.

    Raises:
        ArgumentError: it is no job.
    """
    if isinstance(jobs, Fence) or isinstance(sa_inspect(jobs, raiseerr=False), InstanceState):
        return (jobs,)
    if not isinstance(jobs, Iterable):
        raise _not_a_job(jobs)
    return jobs


def jobs_with_keys(
    jobs: Any, of: QueueMapping | None = None
) -> list[tuple[Any, QueueMapping, Identity]]:
    """Return each given job with its mapping and primary key, whether claimed or not.

    Args:
        of: all are jobs of its table.

    Raises:
        ArgumentError: something given is not a job, is not in the database yet, or is a job of
            another table.
    """
    found: list[tuple[Any, QueueMapping, Identity]] = []
    for job in each_job(jobs):
        if isinstance(job, Fence):
            found.append((job, mapping_of(job.entity), job.identity))
        else:
            state = _state_of(job)
            if state.identity is None:
                name = _row_name(state)
                raise ArgumentError(f"{name} is not in the database yet; flush it first")
            found.append((job, mapping_of(state.mapper), tuple(state.identity)))
        base = found[-1][1].mapper.base_mapper
        if of is not None and base is not of.mapper.base_mapper:
            raise ArgumentError(f"{job!r} is not a job of this queue, whose class is {of}")
    return found


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
