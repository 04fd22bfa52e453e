"""Rows that cannot be claimed are passed over, so that they hold up no other jobs.

A claim loads the jobs that it claims. A value of a row may have no meaning for this version of the
application: a member that a newer version has added to an Enum, or a text that a type of the
application cannot decrypt. Or the database refuses to write the row: a CHECK constraint that was
added as NOT VALID, or a trigger, forbids every change. The claim is then rolled back, and the next
claim meets the same row.

After such an error the worker tries jobs one by one, in the order of claims, until it has found as
many good ones as it wants. It loads them; or, if the database has refused the claim, it claims them
and undoes that. It logs those that cannot be claimed, and leaves them unclaimed: a newer version of
the application may understand them. After some minutes it tries them again. Queues with serial keys
or a strict order pass over nothing: there, a job must not overtake another.

If the database refuses each of the first hundred rows, the cause may be the table or the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, not_, select, tuple_
from sqlalchemy.exc import DataError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..ages import duration_text
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
from .in_hand import several
from .lanes import Lane

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")

Key = tuple[Any, ...]

#: The most rows of a queue that are passed over. If more cannot be claimed, the cause is no row.
MOST = 1_000

#: If the database refuses so many rows before it takes one, the cause is no row.
HOPELESS = 100

#: The pause after a look that found nothing: it may lock rows and, on SQLite, keep other writers
#: waiting.
REST = timedelta(seconds=10)

#: For how long a row is passed over.
PASSED_OVER_FOR = timedelta(minutes=5)


@dataclass
class PassedOver(Generic[T]):
    """The rows that a worker passes over in each lane; `options` are those of its claims."""

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

    def claim(self, session: Session, lane: Lane[T], owner: Any, limit: int) -> Claim[T]:
        """Claim up to `limit` jobs of a lane."""
        queue = self.queue_of(lane)
        if queue is lane.queue:
            return queue.claim(session, owner=owner, limit=limit, options=self.options)
        with called_on(lane.queue):
            return queue.claim(session, owner=owner, limit=limit, options=self.options)

    def may_explain(self, error: Exception) -> bool:
        """Tell whether a claim's error may come from one of its rows."""
        ours = isinstance(error, SQLAlchemyError | JobQueueError)
        is_of_application = not ours and not any(driver_errors(error))
        cannot_be_read = isinstance(error, DataError) and not is_refusal(error)
        refused = is_refusal(error) and not is_mistake(error)
        return is_of_application or cannot_be_read or refused

    def find(
        self, session: Session, lane: Lane[T], owner: Any, wanted: int, error: Exception
    ) -> int:
        """Look for rows that cannot be claimed, where the next claim of so many jobs looks.

        They are passed over from now on, and new ones are logged.

        Args:
            error: that of the claim.

        Returns:
            how many there are.
        """
        if time.monotonic() < self._next_look.get(lane, 0.0):
            return 0
        bad: dict[Key, Exception] = {}
        good = 0
        for key in self._first_keys(session, lane, wanted):
            try:
                with session.begin_nested() as trial:
                    if is_refusal(error):
                        only = _narrowed(lane.queue, _named(lane.mapping, [key]))
                        with called_on(lane.queue):
                            good += bool(only.claim(session, owner=owner, options=self.options))
                    else:
                        good += self._load(session, lane, key)
                    trial.rollback()
            except Exception as refused:
                if not self.may_explain(refused):
                    raise
                bad[key] = refused
            if good == wanted or (not good and sum(map(is_refusal, bad.values())) == HOPELESS):
                break
        if not good:  # what no row survives may be the fault of none
            known = {key for of_lane, key in self._logged if of_lane is lane}
            bad = {k: why for k, why in bad.items() if k in known or not is_refusal(why)}
        self._add(lane, bad)
        return len(bad)

    def _load(self, session: Session, lane: Lane[T], key: Key) -> bool:
        """Load a row; tell whether it is still there."""
        of_key = select(lane.mapping.entity).where(_named(lane.mapping, [key]))
        with writing(session, lane.mapping, reads=True) as writer:
            loaded = writer.orm(of_key.options(*self.options), populate_existing=True)
            return bool(loaded.unique().all())

    def _first_keys(self, session: Session, lane: Lane[T], wanted: int) -> list[Key]:
        """Return the keys of so many due jobs, and of those that may be passed over."""
        spec, mapping = self.queue_of(lane).plan.spec, lane.mapping
        may_overtake = not spec.limits and not spec.strict
        most = max(MOST - len(self._keys(lane)), 0) if may_overtake else 0
        if not most:
            return []
        due = [mapping.attribute("run_at") <= utc_now()] if mapping.has("run_at") else []
        first = (
            select(*mapping.key_attributes)
            .where(mapping.has_status(spec.ready), *due, *spec.where)
            .order_by(*spec.order)
            .limit(most + wanted)
        )
        with writing(session, mapping, reads=True) as writer:
            return [tuple(row) for row in writer.rows(first).all()]

    def _add(self, lane: Lane[T], bad: dict[Key, Exception]) -> None:
        """Pass over rows, and log those that are new."""
        now = time.monotonic()
        if not bad:
            self._next_look[lane] = now + REST.total_seconds()
            return
        until = now + PASSED_OVER_FOR.total_seconds()
        self._until.setdefault(lane, {}).update(dict.fromkeys(bad, until))
        new = [key for key in bad if (lane, key) not in self._logged]
        self._logged.update((lane, key) for key in new)
        if new:
            log.error(
                "%s %s cannot be claimed. The worker goes on with other jobs, and tries again in "
                "%s: %s",
                lane.mapping,
                several([" ".join(map(str, key)) for key in new]),
                duration_text(PASSED_OVER_FOR),
                bad[new[0]],
                exc_info=bad[new[0]],
            )

    def _keys(self, lane: Lane[T]) -> list[Key]:
        """Return the keys of the rows passed over; the time of a row may be over."""
        now, until = time.monotonic(), self._until.get(lane, {})
        for key in [key for key, end in until.items() if end <= now]:
            del until[key]
        return list(until)


def _narrowed(queue: JobQueue[T], criterion: ColumnElement[bool]) -> JobQueue[T]:
    narrowed, spec = copy_of(queue), queue.plan.spec
    narrowed.plan = queue.plan.for_spec(replace(spec, where=(*spec.where, criterion)))
    return narrowed


def _named(mapping: QueueMapping, keys: Sequence[Key]) -> ColumnElement[bool]:
    attributes = mapping.key_attributes
    if len(attributes) == 1:
        return attributes[0].in_([value for (value,) in keys])
    return tuple_(*attributes).in_(keys)
