"""A task: a function whose calls can be enqueued."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from ..errors import ArgumentError
from ..worker import Cancel, Done, Release, Retry
from .values import Signature

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
V = TypeVar("V")


class Adds(Protocol):
    """A Session, an AsyncSession, or a scoped one."""

    def add(self, instance: object) -> None:
        """Have an object inserted by the next flush."""


def check_attempts(given: Any) -> None:
    """Refuse a number of attempts that is none.

    Raises:
        ArgumentError: it is no integer from 1, and not None.
    """
    if given is not None and (type(given) is not int or given < 1):
        raise ArgumentError(f"max_attempts= is a number, 1 or more, not {given!r}")


class Task(Generic[Q, P, R_co, T]):
    """A function whose calls can be enqueued; made by :meth:`TaskQueue.task`.

    Called as a function, it is the function.

    Attributes:
        name: under which its jobs are in the table.
        function: the function itself.
        signature: what is kept of a call.
    """

    def __init__(
        self,
        function: Callable[Q, R_co],
        entity: type[T],
        signature: Signature,
        given: Mapping[str, Any],
    ) -> None:
        update_wrapper(self, function)
        self.name = signature.name
        self.function = function
        self.signature = signature
        self._entity = entity
        self._given = dict(given)

    def __call__(self, /, *args: Q.args, **kwargs: Q.kwargs) -> R_co:
        """Call the function, here and now."""
        function: Callable[Q, R_co] = self.function
        return function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def with_options(
        self,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> Task[Q, P, R_co, T]:
        """Return the task with other values for the jobs that it enqueues.

        Args:
            priority: smaller comes sooner; the default is 0.
            run_at: nobody starts the job before this time, which has a time zone.
            max_attempts: how often the job is tried.

        Raises:
            ArgumentError: `max_attempts` is no number from 1.
        """
        check_attempts(max_attempts)
        options = {"priority": priority, "run_at": run_at, "max_attempts": max_attempts}
        given = self._given | {k: v for k, v in options.items() if v is not None}
        return Task(self.function, self._entity, self.signature, given)

    def enqueue(self, session: Adds, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Add a job that calls the function with these arguments.

        Args:
            session: the caller's, an AsyncSession too; the job is added to it, and inserted by its
                next flush or commit.

        Returns:
            The job.

        Raises:
            ArgumentError: the arguments do not fit the function.
        """
        job = self._entity(**self.values(*args, **kwargs))
        session.add(job)
        return job

    def values(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the attributes of a job that calls the function with these arguments.

        For bulk inserts: ``tasks.queue.enqueue(session, [send.values(n) for n in numbers])``.

        Raises:
            ArgumentError: the arguments do not fit the function.
        """
        return {
            "name": self.name,
            "arguments": self.signature.dump(args, kwargs),
            **self._given,
        }

    @overload
    def result(self: Task[Q, P, Coroutine[Any, Any, V], T], job: T) -> V: ...
    @overload
    def result(self, job: T) -> R_co: ...
    def result(self, job: T) -> Any:
        """Return what the function has returned for a job that is done.

        Raises:
            ArgumentError: the job is of another task, or what was kept does not fit any more.
        """
        stored: Any = job
        if stored.name != self.name:
            raise ArgumentError(f"this job is one of {stored.name}, and not of {self.name}")
        kept = self.signature.result
        return None if kept is None else kept.load(stored.result)

    # -- for a worker ---------------------------------------------------

    def handle(self, *session_and_job: Any) -> Any:
        """Call the function for a job, as a handler."""
        return self._outcome(self._call(*session_and_job))

    async def handle_async(self, *session_and_job: Any) -> Any:
        """Await the function for a job, as a handler."""
        return self._outcome(await self._call(*session_and_job))

    def _call(self, *session_and_job: Any) -> Any:
        *session, job = session_and_job
        args, kwargs = self.signature.load(job.arguments)
        function: Any = self.function
        return function(*session, *args, **kwargs)

    def _outcome(self, returned: Any) -> Any:
        kept = self.signature.result
        if kept is None or isinstance(returned, Done | Retry | Release | Cancel):
            return returned
        result: Any = self._entity
        return Done({result.result: kept.dump(returned)})
