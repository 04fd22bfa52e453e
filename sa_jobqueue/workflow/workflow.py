"""The Workflow itself: steps are declared on it, and signals go through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement

from ..errors import InvalidTransition, NotWaiting
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import CANCELLED
from ..model.transitions import ended, retried
from ..sessions.writer import AnySession
from ..verbs.reap import Reaped
from . import drawing
from .graph import Arrow, Graph, Node
from .history import History, Listener
from .moving import identity_of, move_waiting, status_now
from .step import Step
from .step_queue import StepQueue

T = TypeVar("T")
L = TypeVar("L", bound=Listener)


class Workflow(Generic[T]):
    """The steps that the jobs of one table go through.

    Iterating over it gives its steps, as they were declared; ``Worker(engine,
    workflow)`` works on all of them, ``Worker(engine, [render, upload])`` on two.

    Args:
        entity: a mapped class with JobMixin. Its ``__queue_args__`` name the
            statuses, for its indexes: ``names`` the first one and the last,
            ``ready`` and ``during`` those of the other steps.
        statuses: the user's own enum of statuses; then a word that is no member is
            an error. Words do without.
        final: where jobs end, beside done, failed and cancelled.

    Raises:
        ArgumentError: a class that is no queue, or what cannot be a status.
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
        self._history = History(self.mapping)
        self._steps: list[Step[T]] = []

    @property
    def mapping(self) -> QueueMapping:
        """Where the queue's columns are in the entity."""
        return self._graph.mapping

    def __repr__(self) -> str:
        return f"<Workflow of {self.mapping}: {', '.join(step.name for step in self._steps)}>"

    def __iter__(self) -> Iterator[Step[T]]:
        return iter(self.steps)

    # -- declaring it ---------------------------------------------------

    def step(
        self,
        ready: str,
        *where: ColumnElement[bool],
        during: str,
        then: str,
        branches: Iterable[str] = (),
        **queue: Any,
    ) -> Callable[[Callable[[T], Any]], Step[T]]:
        """Declare a step; the function below is its handler.

        The handler returns None (the job goes to `then`), one of `branches`, a Retry
        or a Cancel. It is a step from then on, and is still called as a function.

        Args:
            ready: the status that its jobs wait in.
            where: further criteria of its claims.
            during: the status that they have while somebody works on them.
            then: where they go next: to the `ready` of a step, to a status in which
                they wait for a signal, or to a final one.
            branches: where else the handler may send them.
            queue: further arguments of :class:`sa_jobqueue.JobQueue`.

        Raises:
            ArgumentError: what cannot be a status, or a queue.
        """

        def declare(handler: Callable[[T], Any]) -> Step[T]:
            graph = self._graph
            name = getattr(handler, "__name__", type(handler).__name__)
            targets = graph.words([then, *graph.words(branches)])
            node = Node(name, graph.word(ready), graph.word(during), targets)
            step_queue: StepQueue[T] = StepQueue(graph, self._history, node, *where, **queue)
            step = Step(graph, node, step_queue, handler)
            graph.add(node)
            self._steps.append(step)
            return step

        return declare

    def waiting(self, status: str, *, signals: str | Iterable[str]) -> None:
        """Declare a status in which jobs that were handed off wait for a signal.

        Args:
            status: no step claims it; a step's `then` or branch leads there.
            signals: where :meth:`signal` may move them from there.
        """
        self._graph.add_waiting(self._graph.word(status), self._graph.words(signals))

    def on_transition(self, listener: L) -> L:
        """Have a function called with the session and each Transition, before the commit.

        In the session, and so in the transaction, that makes the change: what it adds
        there is committed with it, or not at all. A transaction that is run again
        calls it again. Not called for inserts, and for verbs that know no workflow,
        such as :func:`sa_jobqueue.cancel`.
        """
        self._history.listeners.append(listener)
        return listener

    # -- what it is -----------------------------------------------------

    @property
    def steps(self) -> tuple[Step[T], ...]:
        """The steps, as they were declared.

        Raises:
            ArgumentError: jobs would get lost; the message says where.
        """
        self._graph.check()
        return tuple(self._steps)

    @property
    def arrows(self) -> frozenset[Arrow]:
        """Every change of status that is legal, with the verb that makes it."""
        self._graph.check()
        return frozenset(self._graph.arrows)

    @property
    def final(self) -> tuple[str, ...]:
        """Where jobs end."""
        return self._graph.final

    @property
    def unreached(self) -> tuple[str, ...]:
        """Those of the enum's words that no job comes to from its first status."""
        self._graph.check()
        return self._graph.unreached

    def diagram(self) -> str:
        """Draw the workflow in Mermaid's language."""
        self._graph.check()
        return drawing.diagram(self._graph)

    # -- jobs that nobody has -------------------------------------------

    def signal(self, session: AnySession, job: Any, status: str) -> None:
        """Move a job that was handed off, and waits, to a status.

        Of two signals at once one is too late, and says so.

        Args:
            session: the caller's; nothing is committed.
            job: the entity, its fence, or its primary key (a tuple of several columns).
            status: one that was declared in :meth:`waiting`.

        Raises:
            InvalidTransition: no signal leads there.
            NotWaiting: the job is not in a status that this signal leaves; its
                ``status`` says what it is. Nothing was changed.
        """
        self._graph.check()
        graph, after = self._graph, self._graph.plain(status)
        sources, identity = graph.sources_of(after), identity_of(self.mapping, job)
        for before in sources:
            final = graph.is_final(after)
            if move_waiting(session, self.mapping, identity, before, after, final=final):
                self._history.changed(session, [identity], before, after, "signal")
                return
        key = ", ".join(map(str, identity))
        now = status_now(session, self.mapping, identity)
        raise NotWaiting(f"{self.mapping} {key}", now, sources)

    def cancel(self, session: AnySession, jobs: Any) -> list[T]:
        """Cancel jobs that nobody works on; return those that were.

        Beside those of :func:`sa_jobqueue.cancel` the ones that wait for a signal.
        """
        waiting = (*self._graph.ready, *self._graph.waiting)
        after = self.mapping.word(CANCELLED)
        return self._history.change(
            session, jobs, ended(CANCELLED), leaving=waiting, after=after, verb="cancel"
        )

    def retry(self, session: AnySession, jobs: Any, status: str | None = None) -> list[T]:
        """Take jobs that have ended to a step again; return those that were.

        Args:
            status: where that step claims from; by default where new rows are.

        Raises:
            InvalidTransition: no step claims from there.
        """
        graph = self._graph
        graph.check()
        after = graph.initial if status is None else graph.plain(status)
        if after not in graph.ready:
            raise InvalidTransition(" or ".join(graph.final), after, graph.ready)
        return self._history.change(
            session, jobs, retried(after), leaving=graph.final, after=after, verb="retry"
        )

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Take back claims of every step; see :func:`sa_jobqueue.reap`.

        Args:
            limit: the most claims of each step.
        """
        parts = [
            step.queue.reap(session, lease=lease, max_runtime=max_runtime, limit=limit)
            for step in self.steps
        ]
        jobs = tuple(job for part in parts for job in part.jobs)
        return Reaped(jobs, more=any(part.more for part in parts))
