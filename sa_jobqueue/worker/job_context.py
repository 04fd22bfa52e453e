"""What a handler may ask about its job's attempt.

::

    def export(report: Report) -> Retry | None:
        for part in parts(report):
            if job_context().asked_to_stop:
                return Retry(reason="the worker stops")
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from ..errors import ArgumentError
from ..process import Flag
from .in_hand import InHand


class JobContext:
    """An attempt at a job; :func:`job_context` returns it while its handler runs."""

    def __init__(self, in_hand: InHand[Any], stopping: Flag) -> None:
        self._in_hand = in_hand
        self._stopping = stopping

    @property
    def attempt(self) -> int | None:
        """The number of this attempt, from 1; None without RetryMixin."""
        return self._in_hand.attempts

    @property
    def owner(self) -> str:
        """Who has claimed the job."""
        return str(self._in_hand.fence.owner)

    @property
    def asked_to_stop(self) -> bool:
        """Whether the handler should end early.

        It is True when the worker is to stop, when the worker has given this job up, or when
        somebody has called :func:`sa_jobqueue.control.request_stop`. The handler may then return
        a :class:`~sa_jobqueue.worker.Retry`.
        """
        in_hand = self._in_hand
        return self._stopping.is_set() or in_hand.asked_to_stop or in_hand.given_up is not None

    @property
    def time_left(self) -> timedelta | None:
        """The time until the handler's timeout; zero when it is over, None without a timeout."""
        deadline = self._in_hand.deadline
        return None if deadline is None else timedelta(seconds=max(deadline - time.monotonic(), 0))


_current: ContextVar[tuple[InHand[Any], Flag]] = ContextVar("sa_jobqueue_job_context")

#: Sets the attempt that job_context() returns in the current context.
set_job_context = _current.set


def job_context() -> JobContext:
    """Return the attempt whose handler runs here, in this thread or task.

    Raises:
        ArgumentError: the call is not made in a handler.
    """
    try:
        return JobContext(*_current.get())
    except LookupError:
        raise ArgumentError("no worker runs this code: call job_context() in a handler") from None
