"""A TaskQueue: the functions of one table, and their jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ..errors import ArgumentError
from ..events.listeners import copy_of
from ..queue import Handler, JobQueue
from ..verbs.backoff import check_durations
from ..worker.lanes import Lane
from .mixin import NAME_LENGTH, TaskMixin
from .task import Task, check_attempts
from .values import signature_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=TaskMixin)


class TaskQueue(Lane[T]):
    """The tasks of one table: declares them, and gives their jobs to a worker.

    A worker claims only jobs of tasks that are declared here: an older version of the application
    leaves the jobs of a new task alone.

    Args:
        entity: a mapped class with TaskMixin.
        options: of its :class:`sa_jobqueue.JobQueue`, such as `lease`, `backoff` or `limit_by`.

    Raises:
        ArgumentError: the class has no TaskMixin, or the options make no queue.
    """

    def __init__(self, entity: type[T], **options: Any) -> None:
        if not (isinstance(entity, type) and issubclass(entity, TaskMixin)):
            raise ArgumentError(
                f"a TaskQueue needs a mapped class with TaskMixin, not {entity!r}: other classes "
                "have a JobQueue"
            )
        super().__init__(JobQueue(entity, **options), Handler(_not_declared))
        self.entity = entity
        self.tasks: dict[str, Task[..., ..., Any, T]] = entity.__tasks__
        self._parts: dict[str, TaskLane[T]] = {}
        self._known: JobQueue[T] | None = None

    def __repr__(self) -> str:
        return f"<TaskQueue of {self.mapping}>"

    # -- its declaration ------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, P, R, T]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
        max_attempts: int | None = None,
        hide: Iterable[str] = (),
    ) -> Callable[[Callable[P, R]], Task[P, P, R, T]]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
        max_attempts: int | None = None,
        hide: Iterable[str] = (),
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[Concatenate[Any, P], P, R, T]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
        max_attempts: int | None = None,
        hide: Iterable[str] = (),
    ) -> Any:
        """Declare a task: a decorator of its function.

        Args:
            name: under which its jobs are in the table; by default the function's. Keep it when
                you rename the function.
            transactional: the function gets a session before its arguments; what it writes there
                and the job's finish are one commit, or none.
            timeout: as for :meth:`sa_jobqueue.JobQueue.handler`.
            max_attempts: how often each job is tried; by default as the class says.
            hide: the parameters whose values no log and no page shows.

        Raises:
            ArgumentError: the function is a lambda or a generator, or is defined in another
                function; a task has this name already; a parameter cannot be kept as JSON; a
                transactional function has no parameter for the session; or `max_attempts` is no
                number from 1.
        """
        check_attempts(max_attempts)
        check_durations(zero=False, none=True, timeout=timeout)

        def declare(function: Callable[..., Any]) -> Task[..., ..., Any, T]:
            known = name or _name_of(function)
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ArgumentError(f"a call of {known} only makes a generator: leave yield out")
            if not 1 <= len(known) <= NAME_LENGTH:
                raise ArgumentError(f"the name of a task has 1 to {NAME_LENGTH} characters")
            if known in self.tasks:
                there = self.tasks[known].function
                raise ArgumentError(
                    f"two tasks have the name {known!r}: {_place_of(there)} and "
                    f"{_place_of(function)}. Give one of them another name="
                )
            signature = signature_of(
                function, known, skip=int(transactional), hidden=frozenset(hide)
            )
            columns = {} if max_attempts is None else {"max_attempts": max_attempts}
            task: Task[..., ..., Any, T] = Task(function, self.entity, signature, columns)
            is_async = inspect.iscoroutinefunction(function)
            handle = task.handle_async if is_async else task.handle
            self.tasks[known] = task
            self._parts[known] = TaskLane(self, Handler(handle, transactional, timeout))
            self._known = None
            return task

        return declare if function is None else declare(function)

    def every(
        self,
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        missed: str = "once",
        revision: int = 1,
        database: str | None = None,
    ) -> Callable[[Task[..., P, R, T]], Task[..., P, R, T]]:
        """Declare a schedule of a task, without arguments: a decorator, above that of the task.

        Args:
            cron, timezone, missed, revision, database: as for :meth:`sa_jobqueue.JobQueue.every`.
            name: of the schedule in the table; by default the task's.

        Raises:
            ArgumentError: what is below is no task, the task needs arguments, or the others make
                no schedule.
        """

        def declare(task: Any) -> Any:
            if not isinstance(task, Task):
                raise ArgumentError(
                    f"every() schedules a task, not {task!r}: write it above @tasks.task"
                )
            self.declared_queue.every(
                cron,
                name=name or task.name,
                timezone=timezone,
                values=task.values(),
                missed=missed,
                revision=revision,
                database=database,
            )
            return task

        return declare

    # -- for a worker ---------------------------------------------------

    @property
    def queue(self) -> JobQueue[T]:
        """The jobs of the tasks that are declared."""
        if self._known is None:
            self._known = known = copy_of(self.declared_queue)
            spec = known.plan.spec
            named = self.entity.name.in_(sorted(self.tasks))
            known.plan = known.plan.for_spec(replace(spec, where=(*spec.where, named)))
        return self._known

    @property
    def parts(self) -> tuple[Lane[T], ...]:
        """A lane for each task."""
        return tuple(self._parts.values())

    def part_of(self, job: T) -> Lane[T]:
        """Return the lane of a job's task; if the table ignores case, the job may be of none."""
        return self._parts.get(job.name, self)


class TaskLane(Lane[T]):
    """The jobs of one task; a worker claims them with those of the others."""

    def __init__(self, tasks: TaskQueue[T], declared: Handler) -> None:
        super().__init__(tasks.declared_queue, declared)
        self._tasks = tasks

    @property
    def whole(self) -> Lane[T]:
        """The lane that their jobs are claimed by."""
        return self._tasks


def _not_declared(job: Any) -> None:
    raise ArgumentError(f"no task {job.name!r} is declared")


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function that a worker can find.

    Raises:
        ArgumentError: it is no function of a module.
    """
    name: str | None = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise ArgumentError(f"a task is a function with a name, not {function!r}: write def")
    if "<locals>" in function.__qualname__:
        raise ArgumentError(
            f"{_place_of(function)} is defined in another function, and exists only while that "
            "runs: define the task in its module"
        )
    return name


def _place_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
