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
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, not_, select, tuple_
from sqlalchemy.exc import DataError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..databases import is_mistake, is_refusal
from ..databases.clock import utc_now
from ..databases.connections import driver_errors
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


class PassedOver:
    """The rows of a lane that a worker passes over; `options` are those of its claims."""

    def __init__(self, lane: Lane[Any], options: Sequence[Any]) -> None:
        self._lane, self._mapping, self._options = lane, lane.mapping, options
        self._keys: list[Key] = []
        self._until = 0.0
        self._others: JobQueue[Any]
        self._logged: set[Key] = set()

    @property
    def queue(self) -> JobQueue[Any]:
        """The queue to claim from: that of the lane, without the rows passed over."""
        if self._keys and self._until <= time.monotonic():
            self._keys = []
        return self._others if self._keys else self._lane.queue

    def claim(self, session: Session, owner: Any, limit: int) -> Claim[Any]:
        """Claim up to `limit` jobs."""
        return self._claim(self.queue, session, owner, limit)

    def _claim(self, queue: JobQueue[Any], session: Session, owner: Any, limit: int) -> Claim[Any]:
        whole = self._lane.queue
        with nullcontext() if queue is whole else called_on(whole):
            return queue.claim(session, owner=owner, limit=limit, options=self._options)

    def find(self, session: Session, owner: Any, wanted: int) -> int:
        """Look for rows that cannot be claimed, where the next claim of so many jobs looks.

        Each row is claimed alone, and the claim is undone. Those that cannot be claimed are passed
        over from now on, and new ones are logged.

        Returns:
            how many there are.
        """
        bad: dict[Key, Exception] = {}
        good = 0
        for key in self._first_keys(session, wanted):
            try:
                with session.begin_nested() as trial:
                    queue = _narrowed(self._lane.queue, is_one_of(self._mapping, [key]))
                    good += len(self._claim(queue, session, owner, 1))
                    trial.rollback()
            except Exception as refused:
                if not may_be_of_a_row(refused):
                    raise
                bad[key] = refused
            if good == wanted or (not good and sum(map(is_refusal, bad.values())) == HOPELESS):
                break
        if not good:  # what no row survives may be the fault of none
            known = self._logged
            bad = {key: why for key, why in bad.items() if key in known or not is_refusal(why)}
        if bad:
            self._pass_over(bad)
        return len(bad)

    def _first_keys(self, session: Session, wanted: int) -> list[Key]:
        """Return the keys of so many due jobs, and of those that may be passed over."""
        spec, mapping = self.queue.plan.spec, self._mapping
        most = MOST - len(self._keys)
        if spec.key_limit or spec.strict or most <= 0:  # there, a job must not overtake another
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

    def _pass_over(self, bad: dict[Key, Exception]) -> None:
        """Pass over rows, and log those that are new."""
        if not self._keys:
            self._until = time.monotonic() + PASSED_OVER_FOR.total_seconds()
        self._keys += bad
        self._others = _narrowed(self._lane.queue, not_(is_one_of(self._mapping, self._keys)))
        new = [key for key in bad if key not in self._logged]
        self._logged.update(new)
        if new:
            log.error(
                "%s %s cannot be claimed. The worker goes on with other jobs, and tries again in "
                "%s: %s",
                self._mapping,
                several([" ".join(map(str, key)) for key in new]),
                duration_text(PASSED_OVER_FOR),
                bad[new[0]],
                exc_info=bad[new[0]],
            )


def is_one_of(mapping: QueueMapping, keys: Sequence[Key]) -> ColumnElement[bool]:
    """Compare the primary key of a class with keys."""
    attributes = mapping.key_attributes
    if len(attributes) == 1:
        return attributes[0].in_([value for (value,) in keys])
    return tuple_(*attributes).in_(keys)


def may_be_of_a_row(error: Exception) -> bool:
    """Tell whether a claim's error may come from one of its rows."""
    if any(driver_errors(error)):
        return isinstance(error, DataError) or (is_refusal(error) and not is_mistake(error))
    return not isinstance(error, SQLAlchemyError | JobQueueError)


def _narrowed(queue: JobQueue[Any], criterion: ColumnElement[bool]) -> JobQueue[Any]:
    narrowed, spec = copy_of(queue), queue.plan.spec
    narrowed.plan = queue.plan.for_spec(replace(spec, where=(*spec.where, criterion)))
    return narrowed
