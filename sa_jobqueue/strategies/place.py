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
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias
from weakref import ref

from sqlalchemy.orm.attributes import instance_dict

from ..databases import Database
from ..sessions.writer import Writer
from .ready_rows import FROM
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy

#: The shortest and the longest pause between two whole walks, in seconds.
PAUSE = (1.0, 10.0)

#: How many times longer than a whole walk the pause after it is.
REST = 20

Start: TypeAlias = Mapping[str, Any]


class Placed(Strategy):
    """A strategy whose claims begin at the place of its queue on one engine."""

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        super().__init__(spec, database, indexed=indexed)
        # Only the claim index leads to a place.
        served = spec.own_order and spec.served and spec.ready in self.mapping.ready
        plain = spec.placed and not spec.strict
        self._leads = plain and served and self.mapping.sorts_in_python
        number = count()
        roles = [*self.mapping.order_roles, *("" for _ in self.mapping.keys)]
        self._names = [
            f"sa_jobqueue_{role}" if role in spec.levels else f"{FROM}{next(number)}"
            for role in roles
        ]
        self._start: Start = {}
        self._transaction: ref[Any] | None = None  # the one that the start is from
        self._walked_at = self._took = 0.0
        self._changes, self._notices = self.mapping.head.changes, self.mapping.head.notices

    @abstractmethod
    def take_from(self, writer: Writer, request: Request, start: Start) -> Taken:
        """Claim from a start: the parameters of a place, or none for the head of the queue."""

    def take(self, writer: Writer, request: Request) -> Taken:
        """Take jobs from the place, or from the head of the queue if a whole walk is due."""
        if (
            not self._leads
            or writer.hooked  # each session would have its own place; so would each schema
            or writer.connection.get_execution_options().get("schema_translate_map")
        ):
            return self.take_from(writer, request, {})
        head, began = self.mapping.head, time.monotonic()
        changes, notices = head.changes, head.notices
        shortest = PAUSE[0] if notices == self._notices else 0.0
        pause = min(max(self._took * REST, shortest), PAUSE[1])
        is_due = changes != self._changes or began >= self._walked_at + pause
        start = {} if is_due else self._start
        taken = self.take_from(writer, request, start)
        if not start:
            self._walked_at = time.monotonic()
            self._took = self._walked_at - began
            self._changes, self._notices = changes, notices
        if len(taken.jobs) < request.limit:
            self._start = {}
            taken.from_place = bool(start)
            return taken if request.finish else self.add_rest(writer, request, taken)
        transaction = writer.connection.get_transaction()
        if not self._start or self._transaction is None or self._transaction() is not transaction:
            # It begins where this claim has found its first job.
            job, values = taken.jobs[0], taken.first
            if values is None and request.rows:
                values = [job[ordinal] for ordinal in self.mapping.order_ordinals]
            elif values is None:
                values = list(map(instance_dict(job).get, self.mapping.order_attributes))
            self._start = {} if None in values else dict(zip(self._names, values, strict=True))
            self._transaction = None if transaction is None else ref(transaction)
        return taken

    def add_rest(self, writer: Writer, request: Request, taken: Taken) -> Taken:
        """Add what stands before the place to a claim that began there and found too few jobs."""
        if not taken.from_place:
            return taken
        limit = request.limit - len(taken.jobs)
        rest = self.take_from(writer, replace(request, limit=limit, finish=None), {})
        rest.jobs, rest.dates = [*rest.jobs, *taken.jobs], [*rest.dates, *taken.dates]
        if rest.candidates is not None:
            rest.candidates += taken.candidates or 0
            rest.lost = (rest.lost or 0) + (taken.lost or 0)
        return rest
