"""position(): the place of a waiting job in claim order, and how long it may take.

::

    position(session, email)        # 1: it is the next; None: it does not wait
    positions(session, emails)      # of many at once, in the order given
    finish_rate(session, Email)     # jobs per second, of the last five minutes
    waiting_time(session, email)    # the place divided by the rate

Counted by the claim index: what it costs grows with the place, not with the queue.
What it does not know: docs/positions.md.
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
from .count import Key, places_in
from .finish_rate import RECENT, Finishes


def position(session: AnySession, job: Any) -> int | None:
    """Return the place of a job in claim order: 1 is the next.

    Args:
        session: the caller's; pending changes are flushed, nothing is committed.
        job: an entity, or a fence. Its queue is that of its class; where claims have
            criteria or an order of their own, ask the :class:`JobQueue`.

    Returns:
        None for a job that does not wait: claimed, finished, not yet due, gone, or
        kept from the session by criteria of its hooks.

    Raises:
        ArgumentError: an entity that is not in the database.
    """
    return positions(session, [job])[0]


def positions(session: AnySession, jobs: Any) -> list[int | None]:
    """Return the places of jobs, in the order of the jobs.

    Up to 5,000 jobs of a class are looked at in one moment (200 where the key has
    several columns): their places are all different then. More are looked at batch
    by batch.

    Raises:
        ArgumentError: as for :func:`position`.
    """
    groups: dict[QueueMapping, list[tuple[int, Key]]] = {}
    given = jobs_with_keys(jobs)
    for number, (_, mapping, key) in enumerate(given):
        groups.setdefault(mapping, []).append((number, key))
    found: list[int | None] = [None] * len(given)
    for mapping, numbered in groups.items():
        places = _places(session, _queue_of(mapping), [key for _, key in numbered])
        for number, key in numbered:
            found[number] = places.get(key)
    return found


def finish_rate(
    session: AnySession, entity: type[Any], *, over: timedelta = RECENT
) -> float | None:
    """Return how many jobs of a class are finished per second, by the last minutes.

    Done and failed jobs count, and those that their worker has cancelled. It takes an
    index that finds them, which PostgreSQL and SQLite do not have by themselves.

    Args:
        over: how far back, by the database's clock.

    Returns:
        None where no job was finished lately, and always where done rows are deleted
        (``__queue_args__["keep"]`` False): then nothing tells of them.

    Raises:
        ArgumentError: no index finds them, or `over` is no time.
    """
    return finish_rate_of(session, Finishes(_queue_of(mapping_of(entity)), DONE), over)


def waiting_time(session: AnySession, job: Any, *, over: timedelta = RECENT) -> timedelta | None:
    """Estimate how long a job waits still: its place, at the present rate of finishes.

    An estimate: workers come and go, sooner jobs come in, and jobs differ.

    Returns:
        None for a job that does not wait, and where :func:`finish_rate` knows nothing.

    Raises:
        ArgumentError: as for :func:`position` and :func:`finish_rate`.
    """
    ((_, mapping, _),) = jobs_with_keys([job])
    return waiting_time_in(session, Finishes(_queue_of(mapping), DONE), job, over)


def finish_rate_of(session: AnySession, finishes: Finishes, over: timedelta) -> float | None:
    """Return the rate of one queue; see :func:`finish_rate`."""
    with writing(session, mapping_of(finishes.mapping.mapper)) as writer:
        return finishes.rate(writer, over)


def waiting_time_in(
    session: AnySession, finishes: Finishes, job: Any, over: timedelta
) -> timedelta | None:
    """Estimate the waiting time in one queue; see :func:`waiting_time`."""
    rate = finish_rate_of(session, finishes, over)
    (place,) = positions_in(session, finishes.spec, [job])
    return None if place is None or rate is None else timedelta(seconds=place / rate)


def positions_in(session: AnySession, spec: ClaimSpec, jobs: Any) -> list[int | None]:
    """Return the places of jobs in one queue; see :func:`positions`.

    Raises:
        ArgumentError: a job of another class, too.
    """
    keys = [key for _, _, key in jobs_of(spec.mapping, jobs)]
    places = _places(session, spec, keys)
    return [places.get(key) for key in keys]


def _places(session: AnySession, spec: ClaimSpec, keys: Sequence[Key]) -> dict[Key, int]:
    mapping = mapping_of(spec.mapping.mapper)  # refuses a class without JobMixin
    with writing(session, mapping) as writer:
        return places_in(spec, writer).find(writer, keys)


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
