"""Every exception of the library, in one place.

All derive from :class:`sqlalchemy.exc.SQLAlchemyError`. Errors of the engine
itself (deadlocks, lost connections) are never wrapped: they come out as the
driver's :class:`sqlalchemy.exc.DBAPIError`, and :func:`sa_jobqueue.is_transient`
tells which of them are worth another try.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy.orm.exc import StaleDataError


class JobQueueError(sa_exc.SQLAlchemyError):
    """The base of everything that this library raises itself."""


class ArgumentError(JobQueueError, sa_exc.ArgumentError):
    """A call or a model was given something that cannot work."""


class UnsupportedDatabase(JobQueueError):
    """This server, or this connection's settings, cannot do what was asked."""


class NotClaimed(JobQueueError):
    """The job carries no fence: it was not claimed through this entity."""


class LockTimeout(JobQueueError):
    """A lock was not had in the time that the caller would wait."""


class LockNotHeld(JobQueueError):
    """A lock was to be released or checked that is not held here."""


class LockLost(JobQueueError):
    """A lock was ours until its connection died; somebody else may have it by now."""


class ClaimLost(JobQueueError, StaleDataError):
    """Some claims of a batch are no longer ours; nothing was written for them.

    Raised after the rest of the batch was written. Roll back, and nothing of
    the batch happened; commit, and the kept part stays.

    Attributes:
        lost: the jobs whose claim was lost, in the order they were given.
        kept: the jobs that were written, in the order they were given.
    """

    def __init__(self, verb: str, *, lost: Sequence[Any], kept: Sequence[Any]) -> None:
        self.verb = verb
        self.lost = tuple(lost)
        self.kept = tuple(kept)
        super().__init__(
            f"{verb}: {len(self.lost)} of {len(self.lost) + len(self.kept)} claims were lost "
            "to a release, a reap or another owner; nothing was written for those "
            "(.lost), the others (.kept) were written. Roll back to undo the whole batch."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _claim_lost, (self.verb, self.lost, self.kept)


def _claim_lost(verb: str, lost: Sequence[Any], kept: Sequence[Any]) -> ClaimLost:
    return ClaimLost(verb, lost=lost, kept=kept)
