"""A step of a workflow: a JobQueue over its own statuses, and its handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row
from sqlalchemy.orm import Session

from .. import finishing
from ..fencing import Claim
from ..owners import Owner
from ..queue import JobQueue
from ..reaping import Reaped
from ..sessions import AnyConnection, AnySession
from ..status import CANCELLED, FAILED
from ..worker import Lane
from .graph import Graph, Node
from .history import History, Transition
from .moving import move_on

T = TypeVar("T")


class StepQueue(JobQueue[T]):
    """The queue of one step, whose finish goes to the next one.

    Its verbs are those of a :class:`sa_jobqueue.JobQueue`, and tell whoever listens to
    the workflow's transitions.
    """

    def __init__(
        self, graph: Graph, history: History, node: Node, *where: ColumnElement[bool], **how: Any
    ) -> None:
        super().__init__(
            graph.mapping.entity,
            *where,
            ready=node.ready,
            during=node.during,
            then=node.targets[0],
            **how,
        )
        self._graph = graph
        self._history = history
        self._node = node

    def claim(
        self,
        session: AnySession,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnySession | None = None,
        options: Sequence[Any] = (),
    ) -> Claim[T]:
        """Claim up to `limit` jobs that wait for this step; see :func:`sa_jobqueue.claim`."""
        claim = super().claim(
            session, owner=owner, limit=limit, candidates_from=candidates_from, options=options
        )
        self._claimed(session, claim)
        return claim

    def claim_rows(
        self,
        session: AnyConnection,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnySession | None = None,
    ) -> Claim[Row[Any]]:
        """Claim plain rows; see :meth:`sa_jobqueue.JobQueue.claim_rows`."""
        claim = super().claim_rows(
            session, owner=owner, limit=limit, candidates_from=candidates_from
        )
        self._claimed(session, claim)
        return claim

    def turn(
        self,
        session: AnyConnection,
        finished: Any,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        delete: bool | None = None,
        rows: bool = False,
    ) -> Claim[Any]:
        """Finish this step of one batch and claim the next; see the JobQueue's."""
        claim = super().turn(session, finished, owner=owner, limit=limit, delete=delete, rows=rows)
        self._claimed(session, claim)
        return claim

    def complete(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        delete: bool | None = None,
        then: str | None = None,
    ) -> None:
        """Finish this step of jobs.

        Args:
            session, jobs, delete: as for :func:`sa_jobqueue.complete`; only jobs that
                are done are deleted.
            then: where they go: the step's `then` or one of its branches.

        Raises:
            InvalidTransition: the step does not lead there; nothing was written.
            ClaimLost, NotClaimed: as for :func:`sa_jobqueue.complete`.
        """
        after = self._node.targets[0] if then is None else self._graph.plain(then)
        self._graph.check_target(self._node, after)

        def write(jobs: Any) -> None:
            if self._graph.is_final(after):
                gone = delete if after == self._graph.done else False
                finishing.complete(session, jobs, delete=gone, then=after)
            else:
                move_on(session, jobs, after)

        self._written(session, jobs, write, after, "complete")

    def fail(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        error: str | BaseException | None = None,
        retry_in: timedelta | None = None,
    ) -> None:
        """Report failed jobs: this step again while attempts remain, else failed."""
        fail = super().fail
        self._written(
            session,
            jobs,
            lambda jobs: fail(session, jobs, error=error, retry_in=retry_in),
            None,
            "fail",
        )

    def release(self, session: AnyConnection, jobs: Any) -> None:
        """Give jobs back to this step; see :func:`sa_jobqueue.release`."""
        release = super().release
        self._written(session, jobs, lambda jobs: release(session, jobs), self.ready, "release")

    def give_up(self, session: AnyConnection, jobs: Any, *, reason: str | None = None) -> None:
        """Cancel jobs that we have claimed; see :func:`sa_jobqueue.give_up`."""
        give_up, after = super().give_up, self.mapping.word(CANCELLED)
        self._written(
            session, jobs, lambda jobs: give_up(session, jobs, reason=reason), after, "give_up"
        )

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Take back claims of this step; see :meth:`sa_jobqueue.JobQueue.reap`."""
        reaped = super().reap(session, lease=lease, max_runtime=max_runtime, limit=limit)
        entity, during, failed = self.entity, self._node.during, self.mapping.word(FAILED)
        self._history.tell(
            session,
            (
                Transition(
                    entity,
                    job.identity,
                    during,
                    failed if job.failed else self.ready,
                    "reap",
                    job.owner,
                )
                for job in reaped.jobs
            ),
        )
        return reaped

    def _claimed(self, session: AnyConnection, claim: Claim[Any]) -> None:
        self._history.claimed(session, claim, self._node.ready, self._node.during)

    def _written(
        self,
        session: AnyConnection,
        jobs: Any,
        write: Callable[[Any], None],
        after: str | None,
        verb: str,
    ) -> None:
        self._history.written(
            session, jobs, write, before=self._node.during, after=after, verb=verb
        )


class Step(Lane[T]):
    """A step: what the decorator makes of a handler, and still called like it.

    Attributes:
        name: the handler's.
        ready: the status that its jobs wait in.
        during: the status that they have while somebody works on them.
        then: where they go when the handler is content.
        branches: where else it may send them.
    """

    def __init__(
        self, graph: Graph, node: Node, queue: StepQueue[T], handler: Callable[[T], Any]
    ) -> None:
        super().__init__(queue, handler)
        self._graph = graph
        self._node = node
        self.name = node.name
        self.ready, self.during = node.ready, node.during
        self.then, *branches = node.targets
        self.branches = tuple(branches)
        self.__doc__ = handler.__doc__

    def __repr__(self) -> str:
        return f"<Step {self.name} of {self._graph.mapping}: {self.ready} -> {self.during}>"

    def __call__(self, job: T) -> Any:
        """Call the handler."""
        return self.handler(job)

    @property
    def queue(self) -> StepQueue[T]:
        """The queue of its jobs.

        Raises:
            ArgumentError: the workflow cannot work; the message says what to write.
        """
        self._graph.check()
        assert isinstance(self._queue, StepQueue)
        return self._queue

    def check(self, outcome: Any) -> None:
        """Refuse what the handler cannot say.

        Raises:
            InvalidTransition: a status that the step does not lead to.
            ArgumentError: it is no outcome, or needs a mixin that the class has not.
        """
        if isinstance(outcome, str):
            self._graph.check_target(self._node, self._graph.plain(outcome))
        else:
            super().check(outcome)

    def complete(
        self, session: Session, jobs: list[T], then: str | None, *, delete: bool | None
    ) -> None:
        """Finish jobs whose handler was content, or has chosen a branch."""
        self.queue.complete(session, jobs, delete=delete, then=then)
