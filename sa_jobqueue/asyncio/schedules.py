"""Schedules whose methods are awaited: they wrap the Schedules, which are made once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..schedules import Schedules
from ..sessions.writer import AnySession
from .sessions import AnyAsyncSession, async_session_of

__all__ = ["AsyncSchedules"]

P = ParamSpec("P")
R = TypeVar("R")


def _awaited_method(
    method: Callable[Concatenate[Schedules, AnySession, P], R],
) -> Callable[Concatenate[AsyncSchedules, AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same method for an AsyncSession."""

    @wraps(method)
    async def run(
        self: AsyncSchedules, session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        def run_sync(session: AnySession) -> R:
            return method(self.sync_schedules, session, *args, **kwargs)

        return await async_session_of(session).run_sync(run_sync)

    return run


class AsyncSchedules:
    """Schedules for an AsyncSession; an AsyncWorker finds the Schedules by itself.

    No method commits.

    Args:
        schedules: the Schedules of the application.

    Attributes:
        sync_schedules: the Schedules.
    """

    def __init__(self, schedules: Schedules) -> None:
        self.sync_schedules = schedules

    def __repr__(self) -> str:
        return f"<AsyncSchedules of {self.sync_schedules!r}>"

    add = _awaited_method(Schedules.add)
    all = _awaited_method(Schedules.all)
    declare = _awaited_method(Schedules.declare)
    due_in = _awaited_method(Schedules.due_in)
    pause = _awaited_method(Schedules.pause)
    remove = _awaited_method(Schedules.remove)
    resume = _awaited_method(Schedules.resume)
    run_due = _awaited_method(Schedules.run_due)
    run_now = _awaited_method(Schedules.run_now)
