"""Listeners: functions that are called with each transition of a workflow, in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import select

from ..errors import ClaimLost
from ..events.listener import called_on
from ..fence.claim import Claim, FencedJobs, each_job, jobs_by_token, jobs_with_keys
from ..fence.token import Fence
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.transitions import UnclaimedValues
from ..sessions.writer import AnyConnection, AnySession, writing
from ..verbs.manage import change

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


@dataclass
class Listeners:
    """The listeners of a workflow, and the changes that they are told of."""

    mapping: QueueMapping
    functions: list[Listener] = field(default_factory=list)

    def tell(self, session: AnyConnection, transitions: Iterable[Transition]) -> None:
        """Call the listeners, in the session that made the changes."""
        with called_on(None):  # what a listener calls is not of the step's queue
            for transition in transitions:
                for listener in self.functions:
                    listener(session, transition)

    def tell_unclaimed(
        self,
        session: AnyConnection,
        identities: Iterable[tuple[Any, ...]],
        before: str,
        after: str,
        verb: str,
    ) -> None:
        """Tell of jobs that nobody had claimed."""
        entity = self.mapping.entity
        self.tell(session, [Transition(entity, key, before, after, verb) for key in identities])

    def tell_claim(
        self, session: AnyConnection, claim: Claim[Any], before: str, after: str
    ) -> None:
        """Tell of a claim."""
        if self.functions:
            self._tell_fenced(session, claim.fences, before, after, "claim")

    def change(
        self,
        session: AnySession,
        jobs: Any,
        values: UnclaimedValues,
        *,
        leaving: Iterable[str],
        after: str,
        verb: str,
    ) -> list[Any]:
        """Change jobs that nobody has claimed, and tell of the changed ones; return them.

        Each status has its own UPDATE, so that it is known which status a job left.
        """
        jobs, changed = list(each_job(jobs)), list[Any]()
        for before in leaving:
            found = change(session, jobs, values, leaving=partial(_only, before), verb=verb)
            keys = [key for _, _, key in jobs_with_keys(found)]
            self.tell_unclaimed(session, keys, before, after, verb)
            changed += found
        return changed

    def write(
        self,
        session: AnyConnection,
        jobs: Any,
        write: Callable[[Any], None],
        *,
        before: str,
        after: str | None,
        verb: str,
    ) -> None:
        """Write to claimed jobs, and tell of those whose claim was not lost.

        Args:
            after: None where only the database knows the new status: then it is read.
        """
        if not self.functions:
            write(jobs)
            return
        jobs = jobs if isinstance(jobs, Claim) else list(each_job(jobs))  # read twice
        parts = jobs_by_token(jobs)
        try:
            write(jobs)
        except ClaimLost as lost:
            kept = {id(job) for job in lost.kept}
            self._tell_fenced(session, _fences(parts, kept), before, after, verb)
            raise
        self._tell_fenced(session, _fences(parts), before, after, verb)

    def _tell_fenced(
        self,
        session: AnyConnection,
        fences: Iterable[Fence],
        before: str,
        after: str | None,
        verb: str,
    ) -> None:
        owners = {fence.identity: fence.owner for fence in fences}
        found = {} if after is not None else self._statuses(session, list(owners))
        self.tell(
            session,
            [
                Transition(self.mapping.entity, key, before, after or found[key], verb, owner)
                for key, owner in owners.items()
            ],
        )

    def _statuses(
        self, session: AnyConnection, identities: Sequence[tuple[Any, ...]]
    ) -> dict[tuple[Any, ...], str]:
        """Read the statuses of rows that we have just written."""
        mapping, found = self.mapping, dict[tuple[Any, ...], str]()
        with writing(session, mapping, rows=True, reads=True) as writer:
            here = key_is_in(mapping, _KEYS, writer.database)
            read = select(*mapping.keys, mapping.status_word).where(here)
            for batch in key_batches(identities):
                rows = writer.core(read, {_KEYS: key_values(batch)})
                found |= {tuple(row[:-1]): row[-1] for row in rows}
        return found


def _fences(parts: Iterable[FencedJobs], kept: set[int] | None = None) -> list[Fence]:
    """List the fences of the jobs; with `kept`, of the kept jobs only."""
    return [
        Fence(part.mapping.entity, identity, part.token)
        for part in parts
        for _, job, identity in part.indexed
        if kept is None or id(job) in kept
    ]


def _only(word: str, mapping: QueueMapping) -> tuple[str, ...]:
    return (word,)
