"""Rows that cannot be claimed are passed over, so that they hold up no other jobs.

A claim loads the jobs that it claims. A value of a row may have no meaning for this version of the
application: a member that a newer version has added to an Enum, or a text that a type of the
application cannot decrypt. Or the database refuses to write the row: a CHECK constraint that was
added as NOT VALID, or a trigger, forbids every change. The claim is then rolled back, and the next
claim meets the same row.

After such an error the worker tries jobs one by one, in the order of claims, until it has found as
many good ones as it wants: it claims each, and undoes that. It logs those that cannot be claimed,
and leaves them unclaimed: a newer version of the application may understand them. After some
minutes it tries them again. Queues with serial keys or a strict order pass over nothing: there, a
job must not overtake another.

If the database refuses each of the first hundred rows, the cause may be the table or the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

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

Key = tuple[Any, ...]

#: The most rows of a queue that are passed over. If more cannot be claimed, the cause is no row.
MOST = 1_000

#: If the database refuses so many rows before it takes one, the cause is no row.
HOPELESS = 100

#: For how long a row is passed over.
PASSED_OVER_FOR = timedelta(minutes=5)


@dataclass
class PassedOver:
    """The rows that a worker passes over in each lane; `options` are those of its claims."""

    options: Sequence[Any] = ()
    _found: dict[Lane[Any], _Found] = field(default_factory=dict)
    _logged: set[tuple[Lane[Any], Key]] = field(default_factory=set)

    def queue_of(self, lane: Lane[Any]) -> JobQueue[Any]:
        """Return the queue to claim from: that of the lane, without the rows passed over."""
        found = self._found.get(lane)
        if found is not None and found.until <= time.monotonic():
            del self._found[lane]
            found = None
        return lane.queue if found is None else found.others

    def claim(
        self, session: Session, lane: Lane[Any], owner: Any, limit: int, only: Key | None = None
    ) -> Claim[Any]:
        """Claim up to `limit` jobs of a lane, or the job with this key alone."""
        queue = self.queue_of(lane)
        if only is not None:
            queue = _narrowed(lane.queue, _named(lane.mapping, [only]))
        with nullcontext() if queue is lane.queue else called_on(lane.queue):
            return queue.claim(session, owner=owner, limit=limit, options=self.options)

    def may_explain(self, error: Exception) -> bool:
        """Tell whether a claim's error may come from one of its rows."""
        if any(driver_errors(error)):
            unreadable = isinstance(error, DataError)
            return unreadable or (is_refusal(error) and not is_mistake(error))
        return not isinstance(error, SQLAlchemyError | JobQueueError)

    def find(self, session: Session, lane: Lane[Any], owner: Any, wanted: int) -> int:
        """Look for rows that cannot be claimed, where the next claim of so many jobs looks.

        Each row is claimed alone, and the claim is undone. Those that cannot be claimed are passed
        over from now on, and new ones are logged.

        Returns:
            how many there are.
        """
        bad: dict[Key, Exception] = {}
        good = 0
        for key in self._first_keys(session, lane, wanted):
            try:
                with session.begin_nested() as trial:
                    good += len(self.claim(session, lane, owner, 1, only=key))
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
        if bad:
            self._pass_over(lane, bad)
        return len(bad)

    def _first_keys(self, session: Session, lane: Lane[Any], wanted: int) -> list[Key]:
        """Return the keys of so many due jobs, and of those that may be passed over."""
        spec, mapping, found = self.queue_of(lane).plan.spec, lane.mapping, self._found.get(lane)
        most = MOST - (len(found.keys) if found else 0)
        if spec.limits or spec.strict or most <= 0:  # there, a job must not overtake another
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

    def _pass_over(self, lane: Lane[Any], bad: dict[Key, Exception]) -> None:
        """Pass over rows, and log those that are new."""
        before = self._found.get(lane)
        keys = [*(before.keys if before else ()), *bad]
        until = before.until if before else time.monotonic() + PASSED_OVER_FOR.total_seconds()
        others = _narrowed(lane.queue, not_(_named(lane.mapping, keys)))
        self._found[lane] = _Found(keys, until, others)
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


@dataclass(frozen=True)
class _Found:
    """Rows of a lane that are passed over until a time, and the queue without them."""

    keys: Sequence[Key]
    until: float
    others: JobQueue[Any]


def _narrowed(queue: JobQueue[Any], criterion: ColumnElement[bool]) -> JobQueue[Any]:
    narrowed, spec = copy_of(queue), queue.plan.spec
    narrowed.plan = queue.plan.for_spec(replace(spec, where=(*spec.where, criterion)))
    return narrowed


def _named(mapping: QueueMapping, keys: Sequence[Key]) -> ColumnElement[bool]:
    attributes = mapping.key_attributes
    if len(attributes) == 1:
        return attributes[0].in_([value for (value,) in keys])
    return tuple_(*attributes).in_(keys)
