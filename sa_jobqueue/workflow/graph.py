"""The graph of a workflow: which statuses there are, and where a job may go from each; its steps.

It grows while the user's module is imported, and is checked when it is first used: a step is
often declared before the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement

from ..errors import ArgumentError, InvalidTransition
from ..fence.claim import by_mapping, jobs_by_token
from ..fence.token import Change
from ..fence.write import write
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, DONE, FAILED, UNCLAIMED, JobStatus
from ..model.transitions import FINISHED, moved_on
from ..queue import Handler, JobQueue
from ..sessions.writer import AnyConnection, AnySession
from ..verbs import finish
from ..verbs.finish import OwnValues, with_own_values
from ..verbs.manage import PRUNE_LIMIT
from ..worker import Lane

T = TypeVar("T")

#: Words of Mermaid's own language.
_RESERVED = frozenset({"end", "state", "note", "direction", "class", "classdef", "style", "click"})


class Arrow(NamedTuple):
    """A change of status that a workflow knows, and the verb that makes it."""

    before: str
    after: str
    verb: str


@dataclass
class Graph:
    """The statuses of a workflow.

    Attributes:
        steps: each a Step, with its statuses in the table's own words.
        statuses: the user's enum, if one was given.
        further_final: the statuses that jobs end in, besides done, failed and cancelled.
        waiting: for each status in which jobs wait for a signal, the statuses that signals
            may move them to.
    """

    mapping: QueueMapping
    statuses: type[Enum] | None
    further_final: tuple[str, ...]
    steps: list[Any] = field(default_factory=list)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    checked: bool = False

    def __post_init__(self) -> None:
        given = self.statuses
        if given is not None and not (isinstance(given, type) and issubclass(given, str)):
            raise ArgumentError(f"statuses= takes a str enum, as in class S(StrEnum): {given!r}")

    def word(self, status: str) -> str:
        """Return the table's word for a status.

        Raises:
            ArgumentError: it cannot be a status, or is no member of the workflow's enum.
        """
        word = word_of(self.mapping, status)
        known = [*(self.statuses or ()), *map(self.mapping.word, JobStatus)]
        if self.statuses is not None and word not in known:
            raise ArgumentError(f"{word!r} is no member of {self.statuses.__name__}")
        return word

    def plain(self, status: str) -> str:
        """Return the word of a status, whether it is of this workflow or not."""
        if isinstance(status, JobStatus):
            return self.mapping.word(status)
        return str(status.value) if isinstance(status, Enum) else status

    def words(self, statuses: Iterable[str]) -> tuple[str, ...]:
        """Return the words of several statuses, or of one status, without repetition."""
        several = (statuses,) if isinstance(statuses, str) else statuses
        return tuple(dict.fromkeys(map(self.word, several)))

    # -- its statuses and arrows ----------------------------------------

    @property
    def initial(self) -> str:
        """The status of a new row."""
        return self.mapping.word(UNCLAIMED)

    @property
    def ready(self) -> tuple[str, ...]:
        """The statuses that steps claim from."""
        return tuple(step.ready for step in self.steps)

    @property
    def final(self) -> tuple[str, ...]:
        """The statuses that jobs end in."""
        return tuple(dict.fromkeys((*map(self.mapping.word, FINISHED), *self.further_final)))

    @property
    def waits(self) -> tuple[str, ...]:
        """The statuses in which jobs wait for a claim or for a signal."""
        return (*self.ready, *self.waiting)

    @property
    def arrows(self) -> Iterator[Arrow]:
        """Every change of status that the workflow's verbs make."""
        failed, cancelled = self.mapping.word(FAILED), self.mapping.word(CANCELLED)
        for step in self.steps:
            yield Arrow(step.ready, step.during, "claim")
            for target in step.targets:
                yield Arrow(step.during, target, "complete")
            yield Arrow(step.during, step.ready, "release")
            yield Arrow(step.during, step.ready, "reap")
            yield Arrow(step.during, cancelled, "cancel_claimed")
            yield Arrow(step.during, failed, "fail")
            if self.mapping.has("attempts"):
                yield Arrow(step.during, step.ready, "fail")
                yield Arrow(step.during, failed, "reap")
        for waiting, signals in self.waiting.items():
            for target in signals:
                yield Arrow(waiting, target, "signal")
        for word in self.waits:
            yield Arrow(word, cancelled, "cancel")
        for final in self.final:
            for ready in self.ready:
                yield Arrow(final, ready, "retry")

    # -- which change is allowed ----------------------------------------

    def sources_of(self, signal: str) -> tuple[str, ...]:
        """Return the statuses from which a signal moves jobs to `signal`.

        Raises:
            InvalidTransition: there is none; the error names the signals that there are.
        """
        sources = tuple(word for word, signals in self.waiting.items() if signal in signals)
        if not sources:
            known = dict.fromkeys(word for signals in self.waiting.values() for word in signals)
            waiting = " or ".join(self.waiting) or "waiting for a signal"
            raise InvalidTransition(waiting, signal, tuple(known))
        return sources

    # -- whether it can work --------------------------------------------

    def check(self) -> None:
        """Refuse a graph in which jobs would get stuck.

        Raises:
            ArgumentError: it tells what is wrong, and what to write instead.
        """
        if self.checked:
            return
        if not self.steps:
            raise ArgumentError(
                f"the workflow over {self.mapping} has no step: declare one with @workflow.step()"
            )
        self._check_each_once()
        self._check_targets()
        self._check_indexes()
        self.checked = True

    def _check_each_once(self) -> None:
        roles = [(step.ready, f"ready for {step.name}") for step in self.steps]
        roles += [(step.during, f"claimed by {step.name}") for step in self.steps]
        roles += [(word, "waiting for a signal") for word in self.waiting]
        roles += [(word, "that have ended") for word in self.final]
        seen: dict[str, str] = {}
        for word, role in roles:
            if word in seen:
                raise ArgumentError(
                    f"{word!r} cannot be the status both of jobs {seen[word]} and of jobs {role}: "
                    "give each a status of its own"
                )
            seen[word] = role

    def _check_targets(self) -> None:
        ways = [(step.name, step.targets) for step in self.steps]
        ways += [(f"a signal in {word!r}", signals) for word, signals in self.waiting.items()]
        for way, targets in ways:
            for target in targets:
                if target not in (*self.waits, *self.final):
                    raise ArgumentError(
                        f"{way} leads to {target!r}, where a job would stay for ever: no step "
                        f"claims it. Declare a step, or workflow.waiting({target!r}, signals=..), "
                        f"or, if jobs end there, Workflow(.., final=[{target!r}])"
                    )
        if self.initial not in self.waits:
            raise ArgumentError(
                f"new rows of {self.mapping} are {self.initial!r}, and no step claims them. Name "
                f"their status: __queue_args__ = {{'names': {{'unclaimed': {self.ready[0]!r}}}}}"
            )

    def _check_indexes(self) -> None:
        mapping = self.mapping
        ready, during = list(mapping.args.ready), list(mapping.args.during)
        ready += [word for word in self.ready if word not in mapping.ready]
        during += [step.during for step in self.steps if step.during not in mapping.during]
        if ready != list(mapping.args.ready) or during != list(mapping.args.during):
            raise ArgumentError(
                f"the indexes of {mapping} do not serve every step: write 'ready': {ready}, "
                f"'during': {during} in {mapping}.__queue_args__, and migrate its indexes "
                "(docs/workflows.md)"
            )

    # -- its diagram ----------------------------------------------------

    def draw(self) -> Iterator[str]:
        """Yield the lines of a diagram in Mermaid's language.

        It leaves out what is the same in every step: a failed, released or reaped job has the
        step's `ready` status again, or is failed; jobs can be cancelled and retried.
        """
        yield "stateDiagram-v2"
        drawn = [arrow for arrow in self.arrows if arrow.verb in ("claim", "complete", "signal")]
        words = dict.fromkeys(word for arrow in drawn for word in (arrow.before, arrow.after))
        for word in words:
            if _name(word) != word:
                yield f'    state "{word}" as {_name(word)}'
        yield f"    [*] --> {_name(self.initial)}"
        steps = {step.ready: step.name for step in self.steps}
        for before, after, verb in drawn:
            label = {"claim": f" : {steps.get(before)}", "signal": " : signal"}.get(verb, "")
            yield f"    {_name(before)} --> {_name(after)}{label}"
        for word in words:
            if word in self.final:
                yield f"    {_name(word)} --> [*]"


def _name(word: str) -> str:
    """Return a name that Mermaid reads for a status."""
    name = re.sub(r"\W", "_", word)
    return f"{name}_" if name.lower() in _RESERVED else name


# -- its steps ------------------------------------------------------------


class StepQueue(JobQueue[T]):
    """The queue of a step. Its verbs are those of a :class:`sa_jobqueue.JobQueue`, except:

    A completed job goes to the next step, or ends. :meth:`retry` takes jobs that have ended in any
    step, and :meth:`prune` deletes them.
    """

    def __init__(
        self, graph: Graph, targets: tuple[str, ...], *where: ColumnElement[bool], **options: Any
    ) -> None:
        super().__init__(graph.mapping.entity, *where, then=targets[0], **options)
        self._graph = graph
        self.targets = targets

    def handler(self, *_: Any, **__: Any) -> Any:
        """Refuse: the step has its handler.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "a step of a workflow has a handler already: the function under its step()"
        )

    def complete(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        delete: bool | None = None,
        then: str | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Finish this step of jobs.

        A job that ends keeps its owner, and owner_date becomes the time of its end: prune() reads
        it. A job that goes on has no owner, as after a release, and its attempts are counted from
        0, since the next step is different work.

        Args:
            session, jobs, delete, values: as for :func:`sa_jobqueue.complete`; only done jobs
                are deleted.
            then: the next status: the step's `then`, which is the default, or a branch.

        Raises:
            InvalidTransition: the step does not lead to `then`; nothing was written.
            ClaimLost, NotClaimed: as for :func:`sa_jobqueue.complete`.
        """
        after = self.target(self.then if then is None else then)
        if after in self._graph.final:
            gone = delete if after == self.mapping.word(DONE) else False
            finish.complete(session, jobs, delete=gone, then=after, values=values)
        else:
            change = Change("complete", moved_on, after, frees=True)
            changes = [(change, parts) for _, parts in by_mapping(jobs_by_token(jobs))]
            write(session, with_own_values(changes, values))

    def target(self, then: str) -> str:
        """Return the word of a status that the step leads to.

        Raises:
            InvalidTransition: it does not lead there; the error names where it leads.
        """
        word = self._graph.plain(then)
        if word not in self.targets:
            raise InvalidTransition(self.during, word, self.targets)
        return word

    def prune(
        self,
        session: AnySession,
        *,
        older_than: timedelta,
        statuses: Sequence[str] | None = None,
        limit: int = PRUNE_LIMIT,
    ) -> int:
        """Delete rows of jobs that have ended, in any step; return how many.

        See :meth:`sa_jobqueue.JobQueue.prune`.

        Args:
            statuses: final ones of the workflow; None: done.
        """
        statuses = (DONE,) if statuses is None else statuses
        for word in map(self._graph.plain, statuses):
            if word not in self._graph.final:
                raise ArgumentError(
                    f"only jobs that have ended are pruned, and {word!r} is not final: the final "
                    f"statuses are {', '.join(self._graph.final)}"
                )
        return super().prune(session, older_than=older_than, statuses=statuses, limit=limit)

    @property
    def _finished_words(self) -> tuple[str, ...]:
        return self._graph.final


class Step(Lane[T]):
    """A step: a handler with its statuses, which can still be called as a function.

    Attributes:
        name: the handler's name.
        ready: the status of its unclaimed jobs.
        during: the status of its claimed jobs.
        then: the status of jobs whose handler returned None.
        branches: the other statuses that the handler may send jobs to.
    """

    is_step = True

    def __init__(self, graph: Graph, queue: StepQueue[T], handler: Callable[[T], Any]) -> None:
        super().__init__(queue, Handler(handler))
        self._graph = graph
        self.name: str = getattr(handler, "__name__", type(handler).__name__)
        self.ready, self.during, self.targets = queue.ready, queue.during, queue.targets
        self.then, *branches = queue.targets
        self.branches = tuple(branches)
        self.__doc__ = handler.__doc__

    def __repr__(self) -> str:
        return f"<Step {self.name} of {self.mapping}: {self.ready} -> {self.during}>"

    def __call__(self, job: T) -> Any:
        """Call the handler."""
        return self.handler(job)

    @property
    def queue(self) -> StepQueue[T]:
        """The queue of its jobs.

        Raises:
            ArgumentError: jobs would get stuck; the message tells what to write.
        """
        self._graph.check()
        assert isinstance(self.declared_queue, StepQueue)
        return self.declared_queue

    def check_branch(self, then: str) -> None:
        """Refuse a status that the step does not lead to.

        Raises:
            InvalidTransition: it names where the step leads.
        """
        self.queue.target(then)
