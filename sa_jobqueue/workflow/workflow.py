"""The Workflow: which statuses there are, and where a job may go from each; its steps and signals.

It grows while the user's module is imported, and is checked when it is first used: a step is
often declared before the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, inspect, select
from sqlalchemy.orm import InstanceState

from ..errors import ArgumentError, InvalidTransition, NotWaiting
from ..events.event import Event, called_on
from ..events.listeners import add_listener
from ..fence.claim import by_mapping, jobs_by_token, jobs_with_keys
from ..fence.token import Change, Fence
from ..fence.write import write
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping, mapping_of, word_of
from ..model.status import CANCELLED, DONE, FAILED, UNCLAIMED, JobStatus
from ..model.transitions import FINISHED, ended, moved_on, retried
from ..queue import Handler, JobQueue
from ..sessions.writer import AnyConnection, AnySession, Writer, writing
from ..verbs import finish
from ..verbs.finish import OwnValues, with_own_values
from ..verbs.manage import CHANGE_KEYS, PRUNE_LIMIT, change, move
from ..verbs.reap import Reaped
from ..worker import Lane

T = TypeVar("T")

#: Words of Mermaid's own language.
_RESERVED = frozenset({"end", "state", "note", "direction", "class", "classdef", "style", "click"})

#: Verbs that leave the status of their jobs as it is.
_SAME_STATUS = frozenset({"renew", "reprioritize", "prune"})


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


class Arrow(NamedTuple):
    """A change of status that a workflow knows, and the verb that makes it."""

    before: str
    after: str
    verb: str


L = TypeVar("L", bound=Listener)


class Workflow(Generic[T]):
    """The steps that the jobs of one table go through.

    Iteration yields its steps in the order of their declaration. ``Worker(engine,
    workflow)`` works on all of them, ``Worker(engine, [render, upload])`` on two.

    Args:
        entity: a mapped class with JobMixin. Its ``__queue_args__`` name the
            statuses, for its indexes: ``names`` the first and the last status,
            ``ready`` and ``during`` the statuses of the other steps.
        statuses: a str enum of your own; a word that is no member is then an
            error. None: statuses are plain words.
        final: statuses that jobs end in, besides done, failed and cancelled.

    Raises:
        ArgumentError: a class that is no queue, or a word that cannot be a status.
    """

    def __init__(
        self,
        entity: type[T],
        statuses: type[Enum] | None = None,
        *,
        final: Iterable[str] = (),
    ) -> None:
        if statuses is not None and not (isinstance(statuses, type) and issubclass(statuses, str)):
            raise ArgumentError(f"statuses= takes a str enum, as in class S(StrEnum): {statuses!r}")
        self.entity = entity
        #: Where the queue's columns are in the entity.
        self.mapping = mapping_of(entity)
        self._statuses = statuses
        self._steps: list[Step[T]] = []
        # For each status in which jobs wait for a signal, where signals may move them.
        self._waiting: dict[str, tuple[str, ...]] = {}
        self._checked = False
        self._listeners: list[Listener] = []
        ends = dict.fromkeys((*map(self.mapping.word, FINISHED), *self._words(final)))
        #: The statuses that jobs end in.
        self.final: tuple[str, ...] = tuple(ends)

    def __repr__(self) -> str:
        return f"<Workflow of {self.mapping}: {', '.join(step.name for step in self._steps)}>"

    def __iter__(self) -> Iterator[Step[T]]:
        return iter(self.steps)

    # -- its declaration ------------------------------------------------

    def step(
        self,
        ready: str,
        *where: ColumnElement[bool],
        during: str,
        then: str,
        branches: Iterable[str] = (),
        **queue: Any,
    ) -> Callable[[Callable[[T], Any]], Step[T]]:
        """Declare a step, as a decorator of its handler.

        The handler returns None (the job goes to `then`), one of `branches`, a Retry
        or a Cancel. The decorator makes a Step of it, which can still be called.

        Args:
            ready: the status of the step's unclaimed jobs.
            where: further criteria of its claims.
            during: the status of its claimed jobs.
            then: the next status of its jobs: the `ready` of a step, a status in which
                they wait for a signal, or a final status.
            branches: other statuses that the handler may send jobs to.
            queue: further arguments of :class:`sa_jobqueue.JobQueue`.

        Raises:
            ArgumentError: a word that cannot be a status, or arguments that make no queue.
        """

        def declare(handler: Callable[[T], Any]) -> Step[T]:
            targets = self._words([then, *self._words(branches)])
            statuses = {"ready": self._word(ready), "during": self._word(during)}
            step = Step(self, StepQueue[T](self, targets, *where, **statuses, **queue), handler)
            self._steps.append(step)
            self._checked = False
            if self._listeners:
                add_listener(step.declared_queue, self._tell, None)
            return step

        return declare

    def waiting(self, status: str, *, signals: str | Iterable[str]) -> None:
        """Declare a status in which jobs wait for a signal, because others work on them.

        Args:
            status: no step claims jobs of this status; a step's `then` or branch leads to it.
            signals: the statuses that :meth:`signal` may move the jobs to.

        Raises:
            ArgumentError: a word that cannot be a status, or a second declaration of one status.
        """
        word, known = self._word(status), self._waiting
        if word in known:
            raise ArgumentError(
                f"waiting({word!r}) was declared before, with signals={known[word]!r}: "
                "name all signals of a status in one declaration"
            )
        known[word] = self._words(signals)
        self._checked = False

    def on_transition(self, listener: L) -> L:
        """Have a function called with the session and each Transition, before the commit.

        The session is the one that makes the change: what the function adds to it is
        committed with the change, or not at all. When the transaction is run again, the
        function is called again. It is not called for inserts, nor for verbs that know no
        workflow, such as :func:`sa_jobqueue.cancel`.
        """
        if not self._listeners:
            for queue in (self, *(step.declared_queue for step in self._steps)):
                add_listener(queue, self._tell, None)
        self._listeners.append(listener)
        return listener

    def _tell(self, event: Event, writer: Writer | None) -> None:
        """Call the listeners with the session that makes the changes, before its commit."""
        if writer is None or event.name == "after_lost" or event.verb in _SAME_STATUS:
            return
        jobs = [(job, job.before) for job in event.jobs if job.before is not None]
        here = key_is_in(self.mapping, CHANGE_KEYS, writer.database)
        read = select(*self.mapping.keys, self.mapping.column("status")).where(here)
        now: dict[Any, Any] = {  # the statuses of rows that we have just written
            tuple(row[:-1]): row[-1]
            for batch in key_batches([job.key for job, _ in jobs if job.status is None])
            for row in writer.core(read, {CHANGE_KEYS: key_values(batch)})
        }
        with called_on(None):  # what a listener calls is not of the step's queue
            for job, before in jobs:
                # Of the jobs that have ended, only done ones are deleted.
                after = job.status or now.get(job.key, self.mapping.word(DONE))
                told = Transition(event.entity, job.key, before, after, event.verb, job.owner)
                for listener in self._listeners:
                    listener(writer.of_session or writer.connection, told)

    # -- its steps and statuses -----------------------------------------

    @property
    def steps(self) -> tuple[Step[T], ...]:
        """The steps, in the order of their declaration.

        Raises:
            ArgumentError: jobs would get stuck; the message tells where.
        """
        self.check()
        return tuple(self._steps)

    @property
    def signals(self) -> Mapping[str, tuple[str, ...]]:
        """For each status in which jobs wait for a signal, where signals may move them."""
        return dict(self._waiting)

    @property
    def arrows(self) -> frozenset[Arrow]:
        """Every change of status that the workflow allows, with its verb."""
        return frozenset(self._arrows())

    def diagram(self) -> str:
        """Draw the workflow in Mermaid's language.

        It leaves out what is the same in every step: a failed, released or reaped job has the
        step's `ready` status again, or is failed; jobs can be cancelled and retried.
        """
        return "\n".join(self._drawn())

    def _arrows(self) -> Iterator[Arrow]:
        self.check()
        failed, cancelled = self.mapping.word(FAILED), self.mapping.word(CANCELLED)
        for step in self._steps:
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
        for waiting, signals in self._waiting.items():
            for target in signals:
                yield Arrow(waiting, target, "signal")
        for word in self._waits:
            yield Arrow(word, cancelled, "cancel")
        for final in self.final:
            for ready in self._ready:
                yield Arrow(final, ready, "retry")

    def _drawn(self) -> Iterator[str]:
        yield "stateDiagram-v2"
        drawn = [arrow for arrow in self._arrows() if arrow.verb in ("claim", "complete", "signal")]
        words = dict.fromkeys(word for arrow in drawn for word in (arrow.before, arrow.after))
        for word in words:
            if _name(word) != word:
                yield f'    state "{word}" as {_name(word)}'
        yield f"    [*] --> {_name(self._initial)}"
        steps = {step.ready: step.name for step in self._steps}
        for before, after, verb in drawn:
            label = {"claim": f" : {steps.get(before)}", "signal": " : signal"}.get(verb, "")
            yield f"    {_name(before)} --> {_name(after)}{label}"
        for word in words:
            if word in self.final:
                yield f"    {_name(word)} --> [*]"

    # -- jobs that nobody has claimed -----------------------------------

    def signal(self, session: AnySession, job: Any, status: str) -> None:
        """Move a job that waits for a signal to a status, by one UPDATE.

        If two signals come at once, the later one raises NotWaiting.

        Args:
            session: the caller's; nothing is committed.
            job: the entity, its fence, or its primary key (a tuple of several columns).
            status: a status that :meth:`waiting` declared as a signal.

        Raises:
            InvalidTransition: no signal leads to this status.
            NotWaiting: the job is in no status that this signal leaves; the error's
                ``status`` is the one that it has. Nothing was changed.
        """
        self.check()
        mapping, after = self.mapping, _plain(self.mapping, status)
        sources, identity = self._sources_of(after), _identity_of(mapping, job)
        final, named = after in self.final, {CHANGE_KEYS: key_values([identity])}
        with writing(session, mapping, shard_by=[job]) as writer:
            with writer.atomically():
                for before in sources:
                    if move(writer, mapping, identity, before, after, final=final):
                        return
            here = key_is_in(mapping, CHANGE_KEYS, writer.database)
            now = writer.core(select(mapping.column("status")).where(here), named).scalar()
        raise NotWaiting(f"{mapping} {', '.join(map(str, identity))}", now, sources)

    def cancel(self, session: AnySession, jobs: Any) -> list[T]:
        """Cancel jobs that nobody has claimed; return those that were cancelled.

        Jobs that wait for a signal, too; :func:`sa_jobqueue.cancel` leaves them alone.
        """
        return change(session, jobs, "cancel", ended, leaving=self._waits, to=CANCELLED)

    def retry(self, session: AnySession, jobs: Any, status: str | None = None) -> list[T]:
        """Take jobs that have ended to a step again; return those that were taken.

        Args:
            status: the `ready` status of the step; by default that of new rows.

        Raises:
            InvalidTransition: no step claims jobs of this status.
        """
        self.check()
        after = self._initial if status is None else _plain(self.mapping, status)
        if after not in self._ready:
            raise InvalidTransition(" or ".join(self.final), after, self._ready)
        return change(session, jobs, "retry", retried, leaving=self.final, to=after)

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Reap claims of every step; see :func:`sa_jobqueue.reap`.

        Args:
            limit: the most claims of each step.
        """
        parts = [
            step.queue.reap(session, lease=lease, max_runtime=max_runtime, limit=limit)
            for step in self.steps
        ]
        jobs = tuple(job for part in parts for job in part.jobs)
        return Reaped(jobs, more=any(part.more for part in parts))

    # -- which changes are allowed --------------------------------------

    def _word(self, status: str) -> str:
        """Return the table's word for a status.

        Raises:
            ArgumentError: it cannot be a status, or is no member of the workflow's enum.
        """
        word = word_of(self.mapping, status)
        known = [*(self._statuses or ()), *map(self.mapping.word, JobStatus)]
        if self._statuses is not None and word not in known:
            raise ArgumentError(f"{word!r} is no member of {self._statuses.__name__}")
        return word

    def _words(self, statuses: Iterable[str]) -> tuple[str, ...]:
        """Return the words of several statuses, or of one status, without repetition."""
        several = (statuses,) if isinstance(statuses, str) else statuses
        return tuple(dict.fromkeys(map(self._word, several)))

    def _sources_of(self, signal: str) -> tuple[str, ...]:
        """Return the statuses from which a signal moves jobs to `signal`.

        Raises:
            InvalidTransition: there is none; the error names the signals that there are.
        """
        sources = tuple(word for word, signals in self._waiting.items() if signal in signals)
        if not sources:
            known = dict.fromkeys(word for signals in self._waiting.values() for word in signals)
            waiting = " or ".join(self._waiting) or "waiting for a signal"
            raise InvalidTransition(waiting, signal, tuple(known))
        return sources

    @property
    def _initial(self) -> str:
        """The status of a new row."""
        return self.mapping.word(UNCLAIMED)

    @property
    def _ready(self) -> tuple[str, ...]:
        """The statuses that steps claim from."""
        return tuple(step.ready for step in self._steps)

    @property
    def _waits(self) -> tuple[str, ...]:
        """The statuses in which jobs wait for a claim or for a signal."""
        return (*self._ready, *self._waiting)

    def check(self) -> None:
        """Refuse a graph in which jobs would get stuck.

        Raises:
            ArgumentError: it tells what is wrong, and what to write instead.
        """
        if self._checked:
            return
        if not self._steps:
            raise ArgumentError(
                f"the workflow over {self.mapping} has no step: declare one with @workflow.step()"
            )
        self._check_each_once()
        self._check_targets()
        self._check_indexes()
        self._checked = True

    def _check_each_once(self) -> None:
        roles = [(step.ready, f"ready for {step.name}") for step in self._steps]
        roles += [(step.during, f"claimed by {step.name}") for step in self._steps]
        roles += [(word, "waiting for a signal") for word in self._waiting]
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
        ways = [(step.name, step.targets) for step in self._steps]
        ways += [(f"a signal in {word!r}", signals) for word, signals in self._waiting.items()]
        for way, targets in ways:
            for target in targets:
                if target not in (*self._waits, *self.final):
                    raise ArgumentError(
                        f"{way} leads to {target!r}, where a job would stay for ever: no step "
                        f"claims it. Declare a step, or workflow.waiting({target!r}, signals=..), "
                        f"or, if jobs end there, Workflow(.., final=[{target!r}])"
                    )
        if self._initial not in self._waits:
            raise ArgumentError(
                f"new rows of {self.mapping} are {self._initial!r}, and no step claims them. Name "
                f"their status: __queue_args__ = {{'names': {{'unclaimed': {self._ready[0]!r}}}}}"
            )

    def _check_indexes(self) -> None:
        mapping = self.mapping
        ready, during = list(mapping.args.ready), list(mapping.args.during)
        ready += [word for word in self._ready if word not in mapping.ready]
        during += [step.during for step in self._steps if step.during not in mapping.during]
        if ready != list(mapping.args.ready) or during != list(mapping.args.during):
            raise ArgumentError(
                f"the indexes of {mapping} do not serve every step: write 'ready': {ready}, "
                f"'during': {during} in {mapping}.__queue_args__, and migrate its indexes "
                "(docs/workflows.md)"
            )


def _plain(mapping: QueueMapping, status: str) -> str:
    """Return the word of a status, whether it is of a workflow or not."""
    if isinstance(status, JobStatus):
        return mapping.word(status)
    return str(status.value) if isinstance(status, Enum) else status


def _name(word: str) -> str:
    """Return a name that Mermaid reads for a status."""
    name = re.sub(r"\W", "_", word)
    return f"{name}_" if name.lower() in _RESERVED else name


def _identity_of(mapping: QueueMapping, job: Any) -> tuple[Any, ...]:
    """Return the primary key of a job, given as an entity, a fence or its key.

    Raises:
        ArgumentError: a job of another class, or a key of another length.
    """
    if isinstance(job, Fence) or isinstance(inspect(job, raiseerr=False), InstanceState):
        ((_, found, identity),) = jobs_with_keys(job)
        if found.table is not mapping.table:
            raise ArgumentError(f"a job of {mapping} is needed, not one of {found}")
        return identity
    identity = tuple(job) if isinstance(job, tuple | list) else (job,)
    if len(identity) != len(mapping.keys):
        raise ArgumentError(
            f"the primary key of {mapping} has {len(mapping.keys)} columns, and {job!r} has "
            f"{len(identity)}"
        )
    return identity


# -- its steps ------------------------------------------------------------


class StepQueue(JobQueue[T]):
    """The queue of a step. Its verbs are those of a :class:`sa_jobqueue.JobQueue`, except:

    A completed job goes to the next step, or ends. :meth:`retry` takes jobs that have ended in any
    step, and :meth:`prune` deletes them.
    """

    def __init__(
        self,
        workflow: Workflow[T],
        targets: tuple[str, ...],
        *where: ColumnElement[bool],
        **options: Any,
    ) -> None:
        super().__init__(workflow.entity, *where, then=targets[0], **options)
        self.workflow = workflow
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
        if after in self.workflow.final:
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
        word = _plain(self.mapping, then)
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
        for word in (_plain(self.mapping, status) for status in statuses):
            if word not in self.workflow.final:
                raise ArgumentError(
                    f"only jobs that have ended are pruned, and {word!r} is not final: the final "
                    f"statuses are {', '.join(self.workflow.final)}"
                )
        return super().prune(session, older_than=older_than, statuses=statuses, limit=limit)

    @property
    def _finished_words(self) -> tuple[str, ...]:
        return self.workflow.final


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

    def __init__(
        self, workflow: Workflow[T], queue: StepQueue[T], handler: Callable[[T], Any]
    ) -> None:
        super().__init__(queue, Handler(handler))
        self._workflow = workflow
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
        self._workflow.check()
        assert isinstance(self.declared_queue, StepQueue)
        return self.declared_queue

    def check_branch(self, then: str) -> None:
        """Refuse a status that the step does not lead to.

        Raises:
            InvalidTransition: it names where the step leads.
        """
        self.queue.target(then)
