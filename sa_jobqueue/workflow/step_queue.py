"""The queue of a step: completed jobs go to the next step, and listeners are told of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement

from ..errors import ArgumentError
from ..fence.claim import Claim
from ..model.status import CANCELLED, DONE, FAILED
from ..model.transitions import ended, retried
from ..queue import JobQueue
from ..sessions.writer import AnyConnection, AnySession
from ..strategies import ClaimSpec
from ..verbs import finish
from ..verbs.claim import ClaimPlan
from ..verbs.manage import PRUNE_LIMIT
from ..verbs.own_values import OwnValues
from ..verbs.reap import Reaped
from .graph import Graph, Node
from .listeners import Listeners, Transition
from .move import move_on

T = TypeVar("T")


class StepQueue(JobQueue[T]):
    """The queue of a step; a completed job goes to the next step.

    Its verbs are those of a :class:`sa_jobqueue.JobQueue`. They call the workflow's listeners
    with each transition.
    """

    def __init__(
        self,
        graph: Graph,
        listeners: Listeners,
        node: Node,
        *where: ColumnElement[bool],
        **options: Any,
    ) -> None:
        super().__init__(
            graph.mapping.entity,
            *where,
            ready=node.ready,
            during=node.during,
            then=node.targets[0],
            **options,
        )
        self.plan = _TellingPlan(self.plan, listeners, node)
        self._graph = graph
        self._listeners = listeners
        self._node = node

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

        Args:
            session, jobs, delete, values: as for :func:`sa_jobqueue.complete`; only done jobs
                are deleted.
            then: the next status: the step's `then`, which is the default, or a branch.

        Raises:
            InvalidTransition: the step does not lead to `then`; nothing was written.
            ClaimLost, NotClaimed: as for :func:`sa_jobqueue.complete`.
        """
        after = self._node.targets[0] if then is None else self._graph.plain(then)
        self._graph.check_target(self._node, after)

        def write(jobs: Any) -> None:
            if self._graph.is_final(after):
                gone = delete if after == self._graph.done else False
                finish.complete(session, jobs, delete=gone, then=after, values=values)
            else:
                move_on(session, jobs, after, values)

        self._written(session, jobs, write, after, "complete")

    def fail(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        error: str | BaseException | None = None,
        retry_in: timedelta | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Report failed jobs: they repeat this step while attempts remain, else are failed."""
        fail = super().fail
        self._written(
            session,
            jobs,
            lambda jobs: fail(session, jobs, error=error, retry_in=retry_in, values=values),
            None,
            "fail",
        )

    def release(
        self, session: AnyConnection, jobs: Any, *, values: OwnValues | None = None
    ) -> None:
        """Give jobs back to this step; see :func:`sa_jobqueue.release`."""
        release = super().release
        self._written(
            session,
            jobs,
            lambda jobs: release(session, jobs, values=values),
            self.ready,
            "release",
        )

    def cancel_claimed(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        reason: str | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Cancel jobs that we have claimed; see :func:`sa_jobqueue.cancel_claimed`."""
        cancel_claimed, after = super().cancel_claimed, self.mapping.word(CANCELLED)
        self._written(
            session,
            jobs,
            lambda jobs: cancel_claimed(session, jobs, reason=reason, values=values),
            after,
            "cancel_claimed",
        )

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Reap claims of this step; see :meth:`sa_jobqueue.JobQueue.reap`."""
        reaped = super().reap(session, lease=lease, max_runtime=max_runtime, limit=limit)
        entity, during, failed = self.entity, self._node.during, self.mapping.word(FAILED)
        self._listeners.tell(
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

    def cancel(self, session: AnySession, jobs: Any) -> list[T]:
        """Cancel unclaimed jobs of this step; see :meth:`sa_jobqueue.JobQueue.cancel`."""
        jobs, after = self._checked(jobs), self.mapping.word(CANCELLED)
        return self._listeners.change(
            session, jobs, ended(CANCELLED), leaving=[self.ready], after=after, verb="cancel"
        )

    def retry(self, session: AnySession, jobs: Any) -> list[T]:
        """Take jobs that have ended, in any step, to this step; return those that were.

        See :meth:`sa_jobqueue.workflow.Workflow.retry`.
        """
        jobs, final, after = self._checked(jobs), self._graph.final, self.ready
        return self._listeners.change(
            session, jobs, retried(after), leaving=final, after=after, verb="retry"
        )

    def statuses_left_by(self, verb: str) -> tuple[str, ...]:
        """Return the statuses that jobs have before a verb; a job that has ended may be retried."""
        return self._graph.final if verb == "retry" else super().statuses_left_by(verb)

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
            if not self._graph.is_final(word):
                raise ArgumentError(
                    f"only jobs that have ended are pruned, and {word!r} is not final: the final "
                    f"statuses are {', '.join(self._graph.final)}"
                )
        return super().prune(session, older_than=older_than, statuses=statuses, limit=limit)

    def _written(
        self,
        session: AnyConnection,
        jobs: Any,
        write: Callable[[Any], None],
        after: str | None,
        verb: str,
    ) -> None:
        self._listeners.write(
            session, jobs, write, before=self._node.during, after=after, verb=verb
        )


class _TellingPlan(ClaimPlan[T]):
    """The claims of a step, by any method: the workflow's listeners are told."""

    def __init__(self, plan: ClaimPlan[T], listeners: Listeners, node: Node) -> None:
        super().__init__(plan.spec, plan.strategy)
        self._listeners = listeners
        self._node = node

    def for_spec(self, spec: ClaimSpec) -> ClaimPlan[T]:
        """Return a plan that tells the same listeners; see :meth:`ClaimPlan.for_spec`."""
        return _TellingPlan(super().for_spec(spec), self._listeners, self._node)

    def claim(self, session: AnyConnection, **request: Any) -> Claim[Any]:
        """Claim, and tell the listeners; see :meth:`ClaimPlan.claim`."""
        claim = super().claim(session, **request)
        self._listeners.tell_claim(session, claim, self._node.ready, self._node.during)
        return claim
