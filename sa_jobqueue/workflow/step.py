"""A step of a workflow: what its decorator makes of a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from ..worker import Lane
from .graph import Graph, Node
from .step_queue import StepQueue

T = TypeVar("T")


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
