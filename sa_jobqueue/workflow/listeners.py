"""Transitions: what the events of a workflow's verbs say, told in the transaction of the verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import select

from ..events.event import Event, Recorder, called_on
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.status import DONE
from ..sessions.transaction_end import TransactionEnd
from ..sessions.writer import Writer

_KEYS = "told_keys"


@dataclass(frozen=True)
class Transition:
    """The change of a job from one status to another.

    Attributes:
        entity: the mapped class.
        identity: the primary key's values.
        before: the old status, in the table's own word.
        after: the new status.
        verb: what made the change: claim, complete, fail, ..
        owner: who has claimed the job, or had until now; None where nobody had.
    """

    entity: type[Any]
    identity: tuple[Any, ...]
    before: str
    after: str
    verb: str
    owner: str | None = None


#: Called with the session that makes the change, and the change.
Listener: TypeAlias = Callable[[Any, Transition], None]


@dataclass(eq=False)
class Listeners(Recorder):
    """The listeners of a workflow: each event of its verbs is told as transitions."""

    mapping: QueueMapping
    functions: list[Listener] = field(default_factory=list)

    def noted(self, event: Event, number: str, writer: Writer | None) -> None:
        """Call the listeners with the session that makes the changes, before its commit."""
        if writer is None or event.name == "after_lost" or event.verb in _SAME_STATUS:
            return
        jobs = [(job, job.before) for job in event.jobs if job.before is not None]
        unknown = [job.key for job, _ in jobs if job.status is None]
        now = self._statuses(writer, unknown) if unknown else {}
        with called_on(None):  # what a listener calls is not of the step's queue
            for job, before in jobs:
                # Of the jobs that have ended, only done ones are deleted.
                after = job.status or now.get(job.key, self.mapping.word(DONE))
                told = Transition(event.entity, job.key, before, after, event.verb, job.owner)
                for listener in self.functions:
                    listener(writer.of_session or writer.connection, told)

    def ended(self, number: str, end: TransactionEnd) -> None:
        """Do nothing: what the listeners have written was committed with the change, or not."""

    def _statuses(
        self, writer: Writer, keys: Sequence[tuple[Any, ...]]
    ) -> dict[tuple[Any, ...], str]:
        """Read the statuses of rows that we have just written."""
        here = key_is_in(self.mapping, _KEYS, writer.database)
        read = select(*self.mapping.keys, self.mapping.column("status")).where(here)
        return {
            tuple(row[:-1]): row[-1]
            for batch in key_batches(keys)
            for row in writer.core(read, {_KEYS: key_values(batch)})
        }


#: Verbs that leave the status of their jobs as it is.
_SAME_STATUS = frozenset({"renew", "reprioritize", "prune"})
