"""A step of a workflow: ``@workflow.step(..)`` makes it of a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from ..verbs.finish import OwnValues
from ..worker import Cancel, Lane, Retry
from ..worker.outcomes import Finished
from .graph import Graph, Node
from .step_queue import StepQueue

T = TypeVar("T")


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
            ArgumentError: jobs would get stuck; the message tells what to write.
        """
        self._graph.check()
        assert isinstance(self._queue, StepQueue)
        return self._queue

    def outcome_of(self, returned: Any) -> Finished | Retry | Cancel:
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
            self._graph.check_target(self._node, self._graph.plain(then))

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
