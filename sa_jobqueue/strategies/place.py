"""Where in the claim order a queue goes on to claim.

Handled rows stay in the claim index as long as any transaction keeps an old snapshot: a report, a
backup, an idle session. A claim that begins at the head of the queue walks over all of them. So a
claim begins at the first job of the claim before, and only now and then at the head::

    SELECT .. WHERE status = 'unclaimed' AND (run_at, id) >= (:from_0, :from_1) ORDER BY run_at, id

A place only narrows what a claim looks at, so none is wrong. It lags one transaction behind: after
a rollback, the same jobs are claimed in the same order. Other jobs that come to stand before it,
such as late commits, retries, releases or better priorities, are found

* at once, if a claim finds fewer jobs than it wants, or if a verb of this process puts them there;
* soon after a notification;
* otherwise by a whole walk once a second; if a walk takes more than 50 ms, after a pause that is
  twenty times as long, and at most ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias
from weakref import ref

from sqlalchemy.orm.attributes import instance_dict

from ..sessions.writer import Writer
from .ready_rows import FROM
from .spec import ClaimSpec, Request, Taken

#: The shortest and the longest pause between two whole walks, in seconds.
PAUSE = (1.0, 10.0)

#: How many times longer than a whole walk the pause after it is.
REST = 20

Start: TypeAlias = Mapping[str, Any]

#: Takes jobs from a start: the parameters of a place, or none for the head of the queue.
Take: TypeAlias = Callable[[Writer, Request, Start], Taken]


class Place:
    """The place of one queue on one engine."""

    def __init__(self, spec: ClaimSpec) -> None:
        self._mapping = spec.mapping
        # Only the claim index leads to a place.
        served = spec.own_order and spec.served and spec.ready in spec.mapping.ready
        plain = spec.placed and not spec.strict and not spec.limits
        self._leads = plain and served and spec.mapping.sorts_in_python
        number = count()
        roles = [*spec.mapping.order_roles, *("" for _ in spec.mapping.keys)]
        self._names = [
            f"sa_jobqueue_{role}" if role in spec.levels else f"{FROM}{next(number)}"
            for role in roles
        ]
        self._start: Start = {}
        self._transaction: ref[Any] | None = None  # the one that the start is from
        self._walked_at = self._took = 0.0
        self._head = spec.mapping.head
        self._changes, self._notices = self._head.changes, self._head.notices

    def take(self, writer: Writer, request: Request, take: Take, *, alone: bool = False) -> Taken:
        """Take jobs from the place, or from the head of the queue if a whole walk is due.

        Args:
            alone: by one call of `take`; if it found too few jobs, :meth:`add_rest` is to follow.
        """
        if (
            not self._leads
            or writer.hooked  # each session would have its own place; so would each schema
            or writer.connection.get_execution_options().get("schema_translate_map")
        ):
            return take(writer, request, {})
        began, changes, notices = time.monotonic(), self._head.changes, self._head.notices
        shortest = PAUSE[0] if notices == self._notices else 0.0
        pause = min(max(self._took * REST, shortest), PAUSE[1])
        is_due = changes != self._changes or began >= self._walked_at + pause
        start = {} if is_due else self._start
        taken = take(writer, request, start)
        if not start:
            self._walked_at = time.monotonic()
            self._took = self._walked_at - began
            self._changes, self._notices = changes, notices
        if len(taken.jobs) < request.limit:
            self._start = {}
            taken = replace(taken, from_place=True) if start else taken
            return taken if alone else self.add_rest(writer, request, taken, take)
        transaction = writer.connection.get_transaction()
        if not self._start or self._transaction is None or self._transaction() is not transaction:
            self._start = self._before(taken.jobs[0], rows=request.rows)
            self._transaction = None if transaction is None else ref(transaction)
        return taken

    @staticmethod
    def add_rest(writer: Writer, request: Request, taken: Taken, take: Take) -> Taken:
        """Add what stands before the place to a claim that began there and found too few jobs."""
        if not taken.from_place:
            return taken
        rest = take(writer, replace(request, limit=request.limit - len(taken.jobs)), {})
        return Taken([*rest.jobs, *taken.jobs], [*rest.dates, *taken.dates])

    def _before(self, job: Any, *, rows: bool) -> Start:
        """Return the start of a claim that finds this job first."""
        if rows:
            values = list(map(job.__getitem__, self._mapping.order_ordinals))
        else:
            values = list(map(instance_dict(job).get, self._mapping.order_attributes))
        return {} if None in values else dict(zip(self._names, values, strict=True))
