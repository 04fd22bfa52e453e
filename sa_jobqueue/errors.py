"""Every exception of the library, in one file.

All derive from :class:`sqlalchemy.exc.SQLAlchemyError`. Errors of the database
itself (deadlocks, lost connections) are never wrapped: they are raised as SQLAlchemy's
:class:`sqlalchemy.exc.DBAPIError`, and :func:`sa_jobqueue.is_transient`
tells which of them are worth another try.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy.orm.exc import StaleDataError


class JobQueueError(sa_exc.SQLAlchemyError):
    """The base of all exceptions of this library.

    Catch it to catch all of them.
    """


class ArgumentError(JobQueueError, sa_exc.ArgumentError):
    """An argument of a call, or an option of a model, cannot work.

    The message names the argument, and what would work.
    """


class UnsupportedDatabase(JobQueueError):
    """This database, its version, or a setting of this connection does not support the call.

    The message names what is missing, and what to use instead.
    """


class MissingTable(JobQueueError):
    """The database has no table of control or of schedules, though the metadata has it.

    Roll back. Create the table by ``metadata.create_all(engine)`` or by a migration.
    """


class NotClaimed(JobQueueError):
    """The job has no fence, since it was not claimed through this entity.

    Claim the job, find an owner's claims by :func:`~sa_jobqueue.claimed_by`, or give the entity
    the fence of its claim by :func:`~sa_jobqueue.with_fence`.
    """


class JobFailed(JobQueueError):
    """A job that was waited for has failed for good, or was cancelled.

    Attributes:
        job: the job, as text.
        status: the status that it has.
        reason: what its ``last_error`` says; None without RetryMixin.
    """

    def __init__(self, job: str, status: str, reason: str | None) -> None:
        self.job, self.status, self.reason = job, status, reason
        super().__init__(f"{job} is {status}: {reason or 'nobody has told why'}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.status, self.reason)


class HandlerTimeout(JobQueueError, TimeoutError):
    """A handler did not end within its timeout, so its attempt has failed.

    A Worker cannot stop a thread, so it ends: replace its process. An AsyncWorker goes on. Give
    the queue a longer timeout if the handler needs one.
    """


class InvalidTransition(JobQueueError):
    """A job of a workflow was sent to a status that no step and no signal leads to.

    Send the job to one of the `declared` statuses, or declare the status in its step.

    Attributes:
        before: the status of the job.
        after: the status that the job was sent to.
        declared: the statuses that it may go to.
    """

    def __init__(self, before: str, after: str, declared: Sequence[str]) -> None:
        self.before, self.after, self.declared = before, after, tuple(declared)
        ways = ", ".join(map(repr, self.declared)) or "nothing"
        super().__init__(f"from {before!r} a job goes to {ways}, not to {after!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.before, self.after, self.declared)


class NotWaiting(JobQueueError):
    """A signal came for a job that does not wait for it; nothing was changed.

    Ignore the signal if it came twice. Send it again if it came before the commit of the
    transaction that hands the job off.

    Attributes:
        job: the job, as text.
        status: the status that the job has; None: there is no such row.
        waited_in: the statuses of jobs that wait for this signal.
    """

    def __init__(self, job: str, status: str | None, waited_in: Sequence[str]) -> None:
        self.job, self.status, self.waited_in = job, status, tuple(waited_in)
        found = "is not there" if status is None else f"is {status!r}"
        ways = " or ".join(map(repr, self.waited_in))
        super().__init__(
            f"{job} {found}, and this signal is for jobs that are {ways}: it came twice, or "
            "before the commit of the transaction that hands the job off"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.status, self.waited_in)


class LockTimeout(JobQueueError):
    """A lock was not free within the caller's timeout.

    Try again later, or wait longer.
    """


class LockNotHeld(JobQueueError):
    """The caller does not hold the lock that it releases or checks.

    Take the lock first. A forked child does not share its parent's lock, and must take its own.
    """


class LockLost(JobQueueError):
    """The connection that held our lock has died; somebody else may hold the lock by now.

    Roll back. Then take the lock again, or claim again: the next claim has a new owner's name.
    """


class ClaimLost(JobQueueError, StaleDataError):
    """Some claims of a batch are no longer ours; nothing was written to their rows.

    It is raised after the other rows of the batch were written. If you roll back, nothing of the
    batch has happened. If you commit, the finishes of the other jobs stay. Under AUTOCOMMIT they
    are committed already.

    Attributes:
        verb: the verb that found it.
        lost: the jobs whose claim was lost, in the order they were given.
        kept: the jobs whose rows were written, in the order they were given.
    """

    def __init__(self, verb: str, *, lost: Sequence[Any], kept: Sequence[Any]) -> None:
        self.verb = verb
        self.lost = tuple(lost)
        self.kept = tuple(kept)
        super().__init__(
            f"{verb}: {len(self.lost)} of {len(self.lost) + len(self.kept)} claims were lost "
            "to a finish, a release, a reap or another owner; nothing was written to their rows "
            "(.lost), the others (.kept) were written. A rollback undoes the whole batch, but not "
            "under AUTOCOMMIT."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _claim_lost, (self.verb, self.lost, self.kept)


class InvalidState(JobQueueError):
    """A method of a bulk load was called that does not fit the load's state.

    Call one of the methods in `calls`.

    Attributes:
        verb: the method.
        state: the state of the load, as text.
        calls: the methods that fit this state.
    """

    def __init__(self, verb: str, state: str, calls: Sequence[str]) -> None:
        self.verb, self.state, self.calls = verb, str(state), tuple(calls)
        fitting = ", ".join(f"{call}()" for call in calls)
        super().__init__(
            f"{verb}() does not fit a load that is {state}; "
            + (f"call {fitting}." if calls else "make a new BulkLoad.")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verb, self.state, self.calls)


class BrokenLog(JobQueueError):
    """The log of a bulk load cannot be read, or belongs to something else.

    The message names what is missing or damaged, and what to do.
    """


class SourceChanged(JobQueueError):
    """A bulk load is continued with another source than it began with.

    Continue the load with the source that it began with, or roll the load back.
    """


class BatchInDoubt(JobQueueError):
    """Only some rows of a batch exist, and it is not known who inserted them.

    Nothing was changed. Delete these rows or insert the missing rows, and call again. With a
    DatabaseLog no batch is ever in doubt.
    """


class LoadStopped(JobQueueError):
    """A bulk load was stopped as requested.

    The message tells how to continue it.
    """


def _claim_lost(verb: str, lost: Sequence[Any], kept: Sequence[Any]) -> ClaimLost:
    return ClaimLost(verb, lost=lost, kept=kept)
