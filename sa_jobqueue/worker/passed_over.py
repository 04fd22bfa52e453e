"""Rows that cannot be claimed are passed over, so that they do not hold up other jobs.

A claim loads the jobs that it claims. A value of a row may have no meaning for this version of the
application: a member that a newer version has added to an Enum, or a text that a type of the
application cannot decrypt. Or the database refuses to write the row: a CHECK constraint that was
added as NOT VALID, or a trigger, forbids every change. The claim is then rolled back, and the next
claim meets the same row.

After such an error the worker tries jobs one by one, in the order of claims, until it has found as
many good ones as it wants. It reads them; if the database has refused the claim, or all can be
read, it claims them and undoes that. It logs those that cannot be claimed, and leaves them
unclaimed: a newer version of the application may understand them. After some minutes it tries them
again. Queues with serial keys or a strict order pass over nothing: there, a job must not overtake
another.

If none of the first hundred rows can be claimed, the cause may be the table, the server, or a
function that listens to claims. Then only rows that cannot even be read are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Executable, not_, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..dialects import is_mistake, is_refusal
from ..dialects.clock import utc_now
from ..dialects.connections import driver_errors
from ..errors import JobQueueError
from ..events.event import called_on
from ..events.listeners import copy_of
from ..fence.claim import Claim
from ..model.mapping import QueueMapping
from ..queue import JobQueue
from ..sessions.writer import writing
from .lanes import Lane
from .log_records import log_passed_over
from .owner_name import OwnerName

T = TypeVar("T")

Key = tuple[Any, ...]

#: The most rows of a queue that are passed over. If more cannot be claimed, the cause is no row.
MOST = 1_000

#: If so many rows are refused before one is good, the cause is no row.
HOPELESS = 100

#: A look that found nothing is repeated after so many times the time that it took: it may lock rows
#: and, on SQLite, keep other writers waiting.
REST = 20

#: For how long a row is passed over.
PASSED_OVER_FOR = timedelta(minutes=5)


def may_come_from_a_row(error: Exception) -> bool:
    """Tell whether a claim's error may come from one of its rows."""
    ours = isinstance(error, SQLAlchemyError | JobQueueError)
    is_of_application = not ours and not any(driver_errors(error))
    return is_of_application or (is_refusal(error) and not is_mistake(error))


@dataclass
class PassedOver(Generic[T]):
    """The rows that a worker passes over in each of its lanes.

    Attributes:
        owner_name: the name of the claims.
        options: the loader options of the claims.
    """

    owner_name: OwnerName
    options: Sequence[Any] = ()
    _until: dict[Lane[T], dict[Key, float]] = field(default_factory=dict)
    _logged: set[tuple[Lane[T], Key]] = field(default_factory=set)
    _next_look: dict[Lane[T], float] = field(default_factory=dict)  # by time.monotonic()
    # The queues without these rows: the statements of a queue are built once.
    _queues: dict[Lane[T], tuple[list[Key], JobQueue[T]]] = field(default_factory=dict)

    def queue_of(self, lane: Lane[T]) -> JobQueue[T]:
        """Return the queue to claim from: that of the lane, without the rows passed over."""
        keys = self._keys(lane) if self._until else []
        if not keys:
            return lane.queue
        known = self._queues.get(lane)
        if known is None or known[0] != keys:
            known = keys, _narrowed(lane.queue, not_(_named(lane.mapping, keys)))
            self._queues[lane] = known
        return known[1]

    def claim(self, session: Session, lane: Lane[T], limit: int) -> Claim[T]:
        """Claim up to `limit` jobs of a lane."""
        queue = self.queue_of(lane)
        if queue is lane.queue:
            return self._claim(queue, session, limit)
        with called_on(lane.queue):
            return self._claim(queue, session, limit)

    def find(self, session: Session, lane: Lane[T], wanted: int, error: Exception) -> int:
        """Look for rows that cannot be claimed, where the next claim of so many jobs looks.

        They are passed over from now on, and new ones are logged.

        Args:
            error: that of the claim.

        Returns:
            how many there are.
        """
        began = time.monotonic()
        if began < self._next_look.get(lane, 0.0):
            return 0
        with writing(session, lane.mapping, reads=True) as writer:
            keys = [tuple(row) for row in writer.rows(self._first_keys(lane, wanted)).all()]
        bad: dict[Key, Exception] = {}
        if not is_refusal(error):
            bad, _ = _tried(session, keys, partial(self._load, session, lane), wanted)
        if not bad:
            claim_one = partial(self._claim_one, session, lane)
            bad, good = _tried(session, keys, claim_one, wanted, hopeless=HOPELESS)
            if not good:  # what no row survives may be the fault of none
                known = [key for key in bad if (lane, key) in self._logged]
                unloaded, _ = _tried(session, [*bad], partial(self._load, session, lane), len(bad))
                bad = {key: bad[key] for key in (*known, *unloaded)}
        self._add(lane, bad)
        if not bad:
            now = time.monotonic()
            self._next_look[lane] = now + (now - began) * REST
        return len(bad)

    def _load(self, session: Session, lane: Lane[T], key: Key) -> bool:
        """Load a row; tell whether it is still there."""
        of_key = select(lane.mapping.entity).where(_named(lane.mapping, [key]))
        with writing(session, lane.mapping, reads=True) as writer:
            loaded = writer.orm(of_key.options(*self.options), populate_existing=True)
            return bool(loaded.unique().all())

    def _claim_one(self, session: Session, lane: Lane[T], key: Key) -> bool:
        """Claim a row; tell whether it was free to be claimed."""
        only = _narrowed(lane.queue, _named(lane.mapping, [key]))
        with called_on(lane.queue):
            return bool(self._claim(only, session, 1))

    def _claim(self, queue: JobQueue[T], session: Session, limit: int) -> Claim[T]:
        owner = self.owner_name.owner
        return queue.claim(session, owner=owner, limit=limit, options=self.options)

    def _first_keys(self, lane: Lane[T], wanted: int) -> Executable:
        """Select the keys of so many due jobs, and of those that may be passed over."""
        spec, mapping = self.queue_of(lane).plan.spec, lane.mapping
        may_overtake = not spec.limits and not spec.strict
        most = max(MOST - len(self._keys(lane)), 0) if may_overtake else 0
        due = [mapping.attribute("run_at") <= utc_now()] if mapping.has("run_at") else []
        return (
            select(*mapping.key_attributes)
            .where(mapping.has_status(spec.ready), *due, *spec.where)
            .order_by(*spec.order)
            .limit(most and most + wanted)
        )

    def _add(self, lane: Lane[T], bad: dict[Key, Exception]) -> None:
        """Pass over rows, and log those that are new."""
        until = time.monotonic() + PASSED_OVER_FOR.total_seconds()
        self._until.setdefault(lane, {}).update(dict.fromkeys(bad, until))
        new = [key for key in bad if (lane, key) not in self._logged]
        self._logged.update((lane, key) for key in new)
        if new:
            log_passed_over(lane.mapping, new, bad[new[0]], PASSED_OVER_FOR)

    def _keys(self, lane: Lane[T]) -> list[Key]:
        """Return the keys of the rows passed over; the time of a row may be over."""
        now, until = time.monotonic(), self._until.get(lane, {})
        for key in [key for key, end in until.items() if end <= now]:
            del until[key]
        return list(until)


def _tried(
    session: Session,
    keys: Sequence[Key],
    attempt: Callable[[Key], bool],
    wanted: int,
    *,
    hopeless: int | None = None,
) -> tuple[dict[Key, Exception], int]:
    """Try one row after the other, until so many are good, and undo what that has done.

    Args:
        hopeless: give up after so many errors, if no row was good.

    Returns:
        the errors of the others, and how many are good.
    """
    bad: dict[Key, Exception] = {}
    good = 0
    for key in keys:
        try:
            with session.begin_nested() as trial:
                good += attempt(key)
                trial.rollback()
        except Exception as error:
            if not may_come_from_a_row(error):
                raise
            bad[key] = error
        if good == wanted or (not good and len(bad) == hopeless):
            break
    return bad, good


def _narrowed(queue: JobQueue[T], criterion: ColumnElement[bool]) -> JobQueue[T]:
    narrowed, spec = copy_of(queue), queue.plan.spec
    narrowed.plan = queue.plan.for_spec(replace(spec, where=(*spec.where, criterion)))
    return narrowed


def _named(mapping: QueueMapping, keys: Sequence[Key]) -> ColumnElement[bool]:
    attributes = mapping.key_attributes
    if len(attributes) == 1:
        return attributes[0].in_([value for (value,) in keys])
    return tuple_(*attributes).in_(keys)
