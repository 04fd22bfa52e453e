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


class InvalidTransition(JobQueueError):
    """A job of a workflow was to go where no step and no signal leads it.

    Attributes:
        before, after: from which status, and to which.
        declared: where it may go from there.
    """

    def __init__(self, before: str, after: str, declared: Sequence[str]) -> None:
        self.before, self.after, self.declared = before, after, tuple(declared)
        ways = ", ".join(map(repr, self.declared)) or "nothing"
        super().__init__(f"from {before!r} a job goes to {ways}, not to {after!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.before, self.after, self.declared)


class NotWaiting(JobQueueError):
    """A signal came for a job that does not wait for it, and changed nothing.

    Attributes:
        status: what the job is at the moment; None where there is no such row.
    """

    def __init__(self, job: str, status: str | None, waited_in: Sequence[str]) -> None:
        self.job, self.status, self.waited_in = job, status, tuple(waited_in)
        found = "is not there" if status is None else f"is {status!r}"
        ways = " or ".join(map(repr, self.waited_in))
        super().__init__(
            f"{job} {found}, and this signal is for jobs that are {ways}: it came twice, or "
            "before the transaction that hands the job off was committed"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.status, self.waited_in)


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
            "to a finish, a release, a reap or another owner; nothing was written for those "
            "(.lost), the others (.kept) were written. Roll back to undo the whole batch."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _claim_lost, (self.verb, self.lost, self.kept)


class InvalidState(JobQueueError):
    """A bulk load was asked for what does not fit its state.

    Attributes:
        verb: what was called.
        state: the load's, as text.
        calls: the names of those that fit.
    """

    def __init__(self, verb: str, state: str, calls: Sequence[str]) -> None:
        self.verb, self.state, self.calls = verb, str(state), tuple(calls)
        fitting = ", ".join(f"{call}()" for call in calls)
        super().__init__(
            f"{verb}() does not fit a load that is {state}; "
            + (f"what does: {fitting}." if calls else "a new one is a new BulkLoad.")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verb, self.state, self.calls)


class BrokenLog(JobQueueError):
    """The log of a bulk load cannot be read, or belongs to something else."""


class SourceChanged(JobQueueError):
    """A bulk load goes on with another source than it began with."""


class BatchInDoubt(JobQueueError):
    """Only some rows of a batch are there, and nobody knows whose they are."""


class LoadStopped(JobQueueError):
    """A bulk load was told to stop, and has: the message says how to go on."""


def _claim_lost(verb: str, lost: Sequence[Any], kept: Sequence[Any]) -> ClaimLost:
    return ClaimLost(verb, lost=lost, kept=kept)
