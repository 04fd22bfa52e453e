"""position(): the rank of an unclaimed job in claim order, and how long it may take.

::

    position(session, email)        # 1: it is the next job; None: it is not unclaimed and due
    positions(session, emails)      # of many jobs at once, in the order given
    finish_rate(session, Email)     # jobs per second, over the last five minutes
    waiting_time(session, email)    # the position divided by the rate

It is counted by the claim index: the cost grows with the position, not with the queue.
docs/positions.md has the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..fence.claim import jobs_of, jobs_with_keys
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import DONE, UNCLAIMED
from ..sessions.writer import AnySession, writing
from ..strategies import ClaimSpec
from .count import Key, counter_of
from .finish_rate import RECENT, Finishes


def position(session: AnySession, job: Any) -> int | None:
    """Return the position of a job in claim order: 1 is the next job.

    Args:
        session: the caller's session; pending changes are flushed, nothing is committed.
        job: an entity, or a fence. The job is counted in the queue of its class; for claims
            with criteria or an order of their own, ask the :class:`JobQueue`.

    Returns:
        None for a job that is claimed, finished, not yet due or deleted, or that criteria of
        the session's hooks hide.

    Raises:
        ArgumentError: an entity that is not in the database.
    """
    return positions(session, [job])[0]


def positions(session: AnySession, jobs: Any) -> list[int | None]:
    """Return the positions of jobs, in the order of the jobs.

    Up to 5,000 jobs of a class are read at one moment (200 if the key has several
    columns), so their positions are all different. More jobs are read batch by batch.

    Raises:
        ArgumentError: as for :func:`position`.
    """
    groups: dict[QueueMapping, list[tuple[int, Key]]] = {}
    given = jobs_with_keys(jobs)
    for index, (_, mapping, key) in enumerate(given):
        groups.setdefault(mapping, []).append((index, key))
    found: list[int | None] = [None] * len(given)
    for mapping, indexed in groups.items():
        counted = _count(session, _queue_of(mapping), [key for _, key in indexed])
        for index, key in indexed:
            found[index] = counted.get(key)
    return found


def finish_rate(
    session: AnySession, entity: type[Any], *, over: timedelta = RECENT
) -> float | None:
    """Return how many jobs of a class were finished per second in the last minutes.

    Done and failed jobs count, and jobs that their worker has cancelled. An index must
    find them; on PostgreSQL and SQLite you must add it.

    Args:
        over: how far to look back, by the database's clock.

    Returns:
        None if no job was finished lately, and always if done rows are deleted
        (``__queue_args__["keep"]`` is False).

    Raises:
        ArgumentError: no index finds the finished jobs, or `over` is not a positive
            timedelta.
    """
    return finish_rate_of(session, Finishes(_queue_of(mapping_of(entity)), DONE), over)


def waiting_time(session: AnySession, job: Any, *, over: timedelta = RECENT) -> timedelta | None:
    """Estimate how long a job still waits: its position divided by the present finish rate.

    It is an estimate: workers come and go, sooner jobs come in, and jobs differ.

    Returns:
        None where :func:`position` or :func:`finish_rate` returns None.

    Raises:
        ArgumentError: as for :func:`position` and :func:`finish_rate`.
    """
    ((_, mapping, _),) = jobs_with_keys([job])
    return waiting_time_in(session, Finishes(_queue_of(mapping), DONE), job, over)


def finish_rate_of(session: AnySession, finishes: Finishes, over: timedelta) -> float | None:
    """Return the rate of one queue; see :func:`finish_rate`."""
    with writing(session, mapping_of(finishes.mapping.mapper), reads=True) as writer:
        return finishes.rate(writer, over)


def waiting_time_in(
    session: AnySession, finishes: Finishes, job: Any, over: timedelta
) -> timedelta | None:
    """Estimate the waiting time in one queue; see :func:`waiting_time`."""
    rate = finish_rate_of(session, finishes, over)
    (rank,) = positions_in(session, finishes.spec, [job])
    return None if rank is None or rate is None else timedelta(seconds=rank / rate)


def positions_in(session: AnySession, spec: ClaimSpec, jobs: Any) -> list[int | None]:
    """Return the positions of jobs in one queue; see :func:`positions`.

    Raises:
        ArgumentError: as for :func:`positions`, or a job of another class.
    """
    keys = [key for _, _, key in jobs_of(spec.mapping, jobs)]
    counted = _count(session, spec, keys)
    return [counted.get(key) for key in keys]


def _count(session: AnySession, spec: ClaimSpec, keys: Sequence[Key]) -> dict[Key, int]:
    mapping = mapping_of(spec.mapping.mapper)  # refuses a class without JobMixin
    with writing(session, mapping, reads=True) as writer:
        return counter_of(spec, writer).find(writer, keys)


def _queue_of(mapping: QueueMapping) -> ClaimSpec:
    """Return the queue of a class: all of its unclaimed rows.

    It is kept in the mapping, for its statements; a cache would keep the class alive.
    """
    whole = ClaimSpec(
        mapping=mapping,
        where=(),
        order_by=(),
        ready=mapping.word(UNCLAIMED),
        during=mapping.claimed,
    )
    kept: ClaimSpec = vars(mapping).setdefault("_whole_queue", whole)
    return kept
