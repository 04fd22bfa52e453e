"""What a handler says of its job, and what became of it.

::

    def send(email: Email) -> Retry | Cancel | None:
        return None if deliver(email) else Retry(timedelta(minutes=5), reason="busy")

What a handler wants is a value that it returns; what it raises is a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..verbs.backoff import LONGEST_DELAY


@dataclass(frozen=True)
class Retry:
    """What a handler returns to have its job tried again.

    Attributes:
        in_: how long to wait; None waits as after a failure.
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
    """What became of a job whose handler raised.

    Attributes:
        error: what it raised.
        retry_in: how long the job waits for its next attempt, if it has one.
    """

    error: Exception
    retry_in: timedelta | None = None


#: None: the job is done, or goes on as its step says; a status: it took that branch.
Outcome: TypeAlias = "Retry | Cancel | Failed | str | None"


def check_outcome(outcome: Any, mapping: QueueMapping) -> None:
    """Refuse what a handler of this class's jobs cannot say.

    Raises:
        ArgumentError: it is no outcome, or needs a mixin that the class has not.
    """
    if outcome is not None and not isinstance(outcome, Retry | Cancel):
        raise ArgumentError(f"a handler returns None, Retry(..) or Cancel(..), not {outcome!r}")
    if outcome is not None and not isinstance(outcome.reason, str | None):
        raise ArgumentError(f"a reason is text: {outcome.reason!r}")
    if not isinstance(outcome, Retry):
        return
    if not mapping.has("attempts"):
        raise ArgumentError(f"Retry needs RetryMixin on {mapping}")
    if outcome.in_ is None:
        return
    if not mapping.has("run_at"):
        raise ArgumentError(f"Retry(in_=) needs ScheduleMixin on {mapping}")
    if not isinstance(outcome.in_, timedelta) or not abs(outcome.in_) <= LONGEST_DELAY:
        raise ArgumentError(f"Retry(in_=) takes a timedelta of at most ten years: {outcome!r}")
