"""What a handler may ask about its job's attempt.

::

    def export(report: Report) -> Retry | None:
        for part in parts(report):
            if job_context().asked_to_stop:
                return Retry(reason="the worker stops")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..errors import ArgumentError
from ..process.runtime import Flag


@dataclass(frozen=True)
class JobContext:
    """An attempt at a job.

    Attributes:
        attempt: its number, from 1; None where the class counts none.
        owner: who has claimed the job.
    """

    attempt: int | None
    owner: str
    _stopping: Flag

    @property
    def asked_to_stop(self) -> bool:
        """Whether the worker is to stop: a long handler may end early, and return a Retry."""
        return self._stopping.is_set()


_current: ContextVar[JobContext] = ContextVar("sa_jobqueue_job_context")


def job_context() -> JobContext:
    """Return the attempt whose handler runs here, in this thread or task.

    Raises:
        ArgumentError: no worker has called us.
    """
    try:
        return _current.get()
    except LookupError:
        raise ArgumentError("job_context() is for handlers, while a worker calls them") from None


@contextmanager
def in_context(context: JobContext) -> Iterator[None]:
    """Have :func:`job_context` return this attempt."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
