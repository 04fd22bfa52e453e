"""Outcomes: what a handler returns, and the result for its job.

::

    def send(email: Email) -> Retry | Cancel | None:
        return None if deliver(email) else Retry(timedelta(minutes=5), reason="busy")

A handler returns the outcome of its job; an exception means that the job failed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..verbs.backoff import LONGEST_DELAY
from ..verbs.finish import check_own_values


@dataclass(frozen=True)
class Done:
    """What a handler returns to have own columns written with the finish of its job.

    Attributes:
        values: as for :func:`sa_jobqueue.complete`, as in ``{Email.processed: True}``.
        then: the branch that a step of a workflow takes; None: its `then`.
    """

    values: Mapping[Any, Any] = field(default_factory=dict)
    then: str | None = None


@dataclass(frozen=True)
class Retry:
    """What a handler returns to have its job tried again.

    Attributes:
        in_: the delay; None: as after a failure.
        reason: goes to ``last_error``.
    """

    in_: timedelta | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Cancel:
    """What a handler returns to have its job cancelled; the reason goes to ``last_error``."""

    reason: str | None = None


@dataclass(frozen=True)
class Failed:
    """The outcome of a job whose handler raised an exception.

    Attributes:
        error: the exception.
        retry_in: the delay before the next attempt, if one remains.
    """

    error: BaseException
    retry_in: timedelta | None = None


#: None: the job is done, or moves to the `then` of its step; a str: the status of its branch.
Finished: TypeAlias = "Done | str | None"

Outcome: TypeAlias = "Finished | Retry | Cancel | Failed"


class NotYet(Enum):
    """Stands for the outcome of a job whose handler has not returned: it cannot be finished."""

    NOT_YET = auto()


NOT_YET: Final = NotYet.NOT_YET


def refuse_unrun(returned: Any) -> None:
    """Refuse a value that shows that the handler's work has not run.

    Raises:
        ArgumentError: the value must be awaited, or iterated over.
    """
    if not isinstance(returned, Awaitable | Generator | AsyncGenerator):
        return
    if isinstance(returned, Coroutine):
        returned.close()  # else Python warns that it was never awaited
    raise ArgumentError(
        f"the handler returned {returned!r}, and its work has not run: use an AsyncWorker for an "
        "async def handler, and do not use yield in a handler"
    )


def branch_of(outcome: Finished) -> str | None:
    """Return the status of the branch that an outcome takes; None: the usual one."""
    return outcome.then if isinstance(outcome, Done) else outcome


def check_outcome(outcome: Done | Retry | Cancel, mapping: QueueMapping) -> None:
    """Refuse what a handler of this class's jobs cannot return.

    Raises:
        ArgumentError: a value of `outcome` is wrong, or needs a mixin that the class lacks.
    """
    if isinstance(outcome, Done):
        check_own_values(mapping, "complete", outcome.values)
        return
    if not isinstance(outcome.reason, str | None):
        raise ArgumentError(f"a reason is a str, not {outcome.reason!r}")
    if not isinstance(outcome, Retry):
        return
    if not mapping.has("attempts"):
        raise ArgumentError(f"{mapping} counts no attempts, which Retry(..) needs: add RetryMixin")
    if outcome.in_ is None:
        return
    if not isinstance(outcome.in_, timedelta) or not timedelta(0) <= outcome.in_ <= LONGEST_DELAY:
        raise ArgumentError(f"Retry(in_=) takes a timedelta from zero to ten years: {outcome!r}")
