"""A step of a workflow, which ``@workflow.step(..)`` makes of a handler, and its queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from ..errors import ArgumentError, InvalidTransition
from ..fence.claim import jobs_by_token
from ..fence.token import Change
from ..fence.write import write
from ..model.mapping import QueueMapping
from ..model.status import DONE
from ..model.transitions import moved_on
from ..queue import JobQueue
from ..sessions.writer import AnyConnection, AnySession
from ..verbs import finish
from ..verbs.finish import OwnValues, with_own_values
from ..verbs.manage import PRUNE_LIMIT
from ..worker import Lane
from ..worker.lanes import Finished, NotDone
from .graph import Graph

T = TypeVar("T")


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
            change = Change("complete", moved_on(after), frees=True)
            write(session, with_own_values([(change, jobs_by_token(jobs))], values))

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

    def _finished_words(self, mapping: QueueMapping) -> tuple[str, ...]:
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

    last_first = True

    def __init__(self, graph: Graph, queue: StepQueue[T], handler: Callable[[T], Any]) -> None:
        super().__init__(queue, handler)
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
        assert isinstance(self._queue, StepQueue)
        return self._queue

    @property
    def declared_queue(self) -> Any:
        """The same queue, while the workflow may still be declared."""
        return self._queue

    def outcome_of(self, returned: Any) -> Finished | NotDone:
        """Return the outcome of a job whose handler has returned something; a str is a branch.

        Raises:
            InvalidTransition: a status that the step does not lead to.
            ArgumentError: as for a queue's handler.
        """
        if isinstance(returned, str):
            self.check_branch(returned)
            return returned
        return super().outcome_of(returned)

    def check_branch(self, then: str | None) -> None:
        """Refuse a status that the step does not lead to; see :meth:`outcome_of`."""
        if then is not None:
            self.queue.target(then)

    def complete(
        self,
        session: Session,
        jobs: Sequence[T],
        then: str | None,
        *,
        delete: bool | None,
        values: OwnValues | None,
    ) -> None:
        """Finish jobs whose handlers returned None or Done, or the branch `then`."""
        self.queue.complete(session, jobs, delete=delete, then=then, values=values)
