"""The Workflow: its steps are declared on it, and signals are sent to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, inspect, select
from sqlalchemy.orm import InstanceState

from ..errors import ArgumentError, InvalidTransition, NotWaiting
from ..events.event import Event, Recorder, called_on
from ..events.listeners import add_listener
from ..events.notes import note, note_claimable
from ..fence.claim import jobs_with_keys
from ..fence.token import Fence
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import CANCELLED, DONE
from ..model.transitions import ended, reset, retried
from ..sessions.show import loaded, show_expired
from ..sessions.writer import AnySession, Writer, writing
from ..verbs.manage import CHANGE_KEYS, change, change_event, update_statement
from ..verbs.reap import Reaped
from .graph import Arrow, Graph, Step, StepQueue

T = TypeVar("T")

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
                for listener in self.functions:
                    listener(writer.of_session or writer.connection, told)


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
        self.entity = entity
        self._graph = Graph(mapping_of(entity), statuses, ())
        self._graph.further_final = self._graph.words(final)
        self._listeners = Listeners(self.mapping)

    @property
    def mapping(self) -> QueueMapping:
        """Where the queue's columns are in the entity."""
        return self._graph.mapping

    def __repr__(self) -> str:
        return f"<Workflow of {self.mapping}: {', '.join(step.name for step in self._graph.steps)}>"

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
            graph = self._graph
            targets = graph.words([then, *graph.words(branches)])
            statuses = {"ready": graph.word(ready), "during": graph.word(during)}
            step = Step(graph, StepQueue[T](graph, targets, *where, **statuses, **queue), handler)
            graph.steps.append(step)
            graph.checked = False
            if self._listeners.functions:
                add_listener(step.declared_queue, self._listeners, None)
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
        word, known = self._graph.word(status), self._graph.waiting
        if word in known:
            raise ArgumentError(
                f"waiting({word!r}) was declared before, with signals={known[word]!r}: "
                "name all signals of a status in one declaration"
            )
        known[word] = self._graph.words(signals)
        self._graph.checked = False

    def on_transition(self, listener: L) -> L:
        """Have a function called with the session and each Transition, before the commit.

        The session is the one that makes the change: what the function adds to it is
        committed with the change, or not at all. When the transaction is run again, the
        function is called again. It is not called for inserts, nor for verbs that know no
        workflow, such as :func:`sa_jobqueue.cancel`.
        """
        if not self._listeners.functions:
            for queue in (self, *(step.declared_queue for step in self._graph.steps)):
                add_listener(queue, self._listeners, None)
        self._listeners.functions.append(listener)
        return listener

    # -- its steps and statuses -----------------------------------------

    @property
    def steps(self) -> tuple[Step[T], ...]:
        """The steps, in the order of their declaration.

        Raises:
            ArgumentError: jobs would get stuck; the message tells where.
        """
        self._graph.check()
        return tuple(self._graph.steps)

    @property
    def arrows(self) -> frozenset[Arrow]:
        """Every change of status that the workflow allows, with its verb."""
        self._graph.check()
        return frozenset(self._graph.arrows)

    @property
    def final(self) -> tuple[str, ...]:
        """The statuses that jobs end in."""
        return self._graph.final

    def diagram(self) -> str:
        """Draw the workflow in Mermaid's language."""
        self._graph.check()
        return "\n".join(self._graph.draw())

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
        graph, mapping, after = self._graph, self.mapping, self._graph.plain(status)
        graph.check()
        sources, identity = graph.sources_of(after), _identity_of(mapping, job)
        final, named = after in graph.final, {CHANGE_KEYS: key_values([identity])}
        with writing(session, mapping) as writer:
            for before in sources:
                moving = update_statement(
                    mapping, writer, ended if final else reset, after, (before,)
                )
                if not writer.core(moving, named).rowcount:
                    continue
                show_expired(writer.session, mapping, loaded(writer.session, mapping, [identity]))
                if mapping.listeners:
                    told = change_event(mapping, "signal", {identity: before}, after)
                    note(writer, mapping, told)
                if mapping.wakes and not final:
                    note_claimable(writer, mapping)
                return
            here = key_is_in(mapping, CHANGE_KEYS, writer.database)
            now = writer.core(select(mapping.column("status")).where(here), named).scalar()
        raise NotWaiting(f"{mapping} {', '.join(map(str, identity))}", now, sources)

    def cancel(self, session: AnySession, jobs: Any) -> list[T]:
        """Cancel jobs that nobody has claimed; return those that were cancelled.

        Jobs that wait for a signal, too; :func:`sa_jobqueue.cancel` leaves them alone.
        """
        leaving = self._graph.waits
        return change(session, jobs, "cancel", ended, leaving=leaving, to=CANCELLED)

    def retry(self, session: AnySession, jobs: Any, status: str | None = None) -> list[T]:
        """Take jobs that have ended to a step again; return those that were taken.

        Args:
            status: the `ready` status of the step; by default that of new rows.

        Raises:
            InvalidTransition: no step claims jobs of this status.
        """
        graph = self._graph
        graph.check()
        after = graph.initial if status is None else graph.plain(status)
        if after not in graph.ready:
            raise InvalidTransition(" or ".join(graph.final), after, graph.ready)
        return change(session, jobs, "retry", retried, leaving=graph.final, to=after)

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
