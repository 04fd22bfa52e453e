"""The queue of a step: completed jobs go to the next step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement

from ..errors import ArgumentError
from ..fence.claim import jobs_by_token
from ..fence.token import Change
from ..fence.write import write
from ..model.mapping import QueueMapping
from ..model.status import DONE
from ..model.transitions import moved_on
from ..queue import JobQueue
from ..sessions.writer import AnyConnection, AnySession
from ..verbs import finish
from ..verbs.manage import PRUNE_LIMIT
from ..verbs.own_values import OwnValues, with_own_values
from .graph import Graph, Node

T = TypeVar("T")


class StepQueue(JobQueue[T]):
    """The queue of a step. Its verbs are those of a :class:`sa_jobqueue.JobQueue`, except:

    A completed job goes to the next step, or ends. :meth:`retry` takes jobs that have ended in any
    step, and :meth:`prune` deletes them.
    """

    def __init__(
        self, graph: Graph, node: Node, *where: ColumnElement[bool], **options: Any
    ) -> None:
        super().__init__(
            graph.mapping.entity,
            *where,
            ready=node.ready,
            during=node.during,
            then=node.targets[0],
            **options,
        )
        self._graph = graph
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
        after = self._node.targets[0] if then is None else self._graph.plain(then)
        self._graph.check_target(self._node, after)
        if self._graph.is_final(after):
            gone = delete if after == self._graph.done else False
            finish.complete(session, jobs, delete=gone, then=after, values=values)
        else:
            change = Change("complete", moved_on(after), frees=True)
            write(session, with_own_values([(change, jobs_by_token(jobs))], values))

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

    def _finished_words(self, mapping: QueueMapping) -> tuple[str, ...]:
        return self._graph.final
