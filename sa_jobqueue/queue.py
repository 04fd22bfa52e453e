"""JobQueue: what is claimed and how, said once; its statements are built once.

::

    outbox = JobQueue(Email, Email.kind == "invoice", strategy="skip_locked")

    emails = outbox.claim(session, owner="mailer-1", limit=100)
    session.commit()
    ...
    outbox.complete(session, emails)
    session.commit()

The functions of the package are the same verbs for one call; a queue that is
kept saves about a millisecond of Python in each claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row

from .errors import ArgumentError
from .fence.claim import Claim
from .model.mapping import QueueMapping
from .model.status import CLAIMED, DONE, UNCLAIMED
from .owners.owner import Owner
from .queue_position.finish_rate import RECENT, Finishes
from .queue_position.position import finish_rate_of, positions_in, waiting_time_in
from .sessions.writer import AnyConnection, AnySession
from .strategies import WAIT, said
from .verbs import finish
from .verbs.backoff import Backoff, check_backoff
from .verbs.claim import claim_plan
from .verbs.reap import Reaped, reap_claims

T = TypeVar("T")


class JobQueue(Generic[T]):
    """A prebuilt claim, with the verbs that finish it.

    Args:
        entity: a mapped class with JobMixin.
        where: criteria, joined by AND.
        order_by: replaces the claim order; the primary key always ends it.
        lease: how long a claim of an unknown owner is left alone; by default
            ``__queue_args__["lease"]``, else 10 minutes.
        ready, during, then: the statuses that a claim leaves, that it writes,
            and that a completed job has; JobStatus or words of the user's own.
        strategy: ``"auto"``, or the name of one.
        strict_order: claims go in exact order: one claimer at a time, until its
            transaction ends. Needs ``strategy="auto"``.
        backoff: how long a failed job waits, from its number of attempts; needs
            RetryMixin and ScheduleMixin. None: as long as ``fail()`` is told.
        serial_by: an attribute, or a tuple of several, whose value is a key: of each
            key one job is claimed at a time, the oldest first.
        limit_by: attributes, or tuples of them, each with how many jobs of one key
            may be claimed at a time.
        on_retry: ``"wait"``: a job that waits for its retry keeps its key, of
            `serial_by`; ``"skip"``: others of its key go on meanwhile.

    Raises:
        ArgumentError: what cannot be a queue.
    """

    def __init__(
        self,
        entity: type[T],
        *where: ColumnElement[bool],
        order_by: Any = (),
        lease: timedelta | None = None,
        ready: str = UNCLAIMED,
        during: str = CLAIMED,
        then: str = DONE,
        strategy: str = "auto",
        strict_order: bool = False,
        backoff: Backoff | None = None,
        serial_by: Any = None,
        limit_by: Mapping[Any, int] | None = None,
        on_retry: str = WAIT,
    ) -> None:
        self.entity = entity
        self.plan = claim_plan(
            entity,
            *where,
            order_by=order_by,
            ready=ready,
            during=during,
            strategy=strategy,
            strict=strict_order,
            serial_by=serial_by,
            limit_by=limit_by,
            on_retry=on_retry,
        )
        self.then = then
        self.backoff = backoff
        if backoff is not None:
            check_backoff(self.mapping, backoff)
        self.lease = self.mapping.args.lease if lease is None else lease
        if self.lease <= timedelta(0):
            raise ArgumentError(f"a lease is longer than nothing: {self.lease!r}")

    @property
    def mapping(self) -> QueueMapping:
        """Where the queue's columns are in the entity."""
        return self.plan.mapping

    def __repr__(self) -> str:
        strict = ", strict_order=True" if self.plan.spec.strict else ""
        limits = said(self.plan.spec.limits, self.plan.spec.on_retry)
        return f"<JobQueue {self.mapping}, strategy={self.plan.strategy!r}{strict}{limits}>"

    def claim(
        self,
        session: AnySession,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnySession | None = None,
        options: Sequence[Any] = (),
    ) -> Claim[T]:
        """Claim up to `limit` jobs; see :func:`sa_jobqueue.claim`."""
        return self.plan.claim(
            session, owner=owner, limit=limit, candidates_from=candidates_from, options=options
        )

    def claim_rows(
        self,
        session: AnyConnection,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnySession | None = None,
    ) -> Claim[Row[Any]]:
        """Claim plain rows: the table's columns, without entities.

        For rows, a Connection does as well as a Session, and takes less time.
        Finish the Claim as a whole, or single rows by ``claim.fences[i]``.
        """
        return self.plan.claim(
            session, owner=owner, limit=limit, rows=True, candidates_from=candidates_from
        )

    def turn(
        self,
        session: AnyConnection,
        finished: Any,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        delete: bool | None = None,
        rows: bool = False,
    ) -> Claim[Any]:
        """Complete one batch and claim the next, in one transaction of the caller's.

        One commit a batch instead of two. With ``rows=True``, on a Connection
        too. Whoever retries the transaction after a deadlock gives the same
        `finished` again: they are finished, not run again.

        Raises:
            ClaimLost: claims of `finished` were lost; nothing was claimed.
        """
        self.complete(session, finished, delete=delete)
        return self.plan.claim(session, owner=owner, limit=limit, rows=rows)

    def complete(self, session: AnyConnection, jobs: Any, *, delete: bool | None = None) -> None:
        """Finish jobs with the queue's `then`; see :func:`sa_jobqueue.complete`."""
        finish.complete(session, jobs, delete=delete, then=self.then)

    def fail(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        error: str | BaseException | None = None,
        retry_in: timedelta | None = None,
    ) -> None:
        """Report failed jobs; see :func:`sa_jobqueue.fail`.

        Without `retry_in` they wait by the queue's backoff.
        """
        finish.fail(
            session, jobs, error=error, retry_in=retry_in, backoff=self.backoff, ready=self.ready
        )

    def release(self, session: AnyConnection, jobs: Any) -> None:
        """Give jobs back; see :func:`sa_jobqueue.release`."""
        finish.release(session, jobs, ready=self.ready)

    def renew(self, session: AnyConnection, jobs: Any) -> None:
        """Start the lease again; see :func:`sa_jobqueue.renew`."""
        finish.renew(session, jobs)

    def cancel_claimed(
        self, session: AnyConnection, jobs: Any, *, reason: str | None = None
    ) -> None:
        """Cancel jobs that we have claimed; see :func:`sa_jobqueue.cancel_claimed`."""
        finish.cancel_claimed(session, jobs, reason=reason)

    def claimed_by(self, session: AnySession, owner: str | int | Owner) -> Claim[T]:
        """Return an owner's claims of this queue; see :func:`sa_jobqueue.claimed_by`."""
        return self.plan.claimed_by(session, owner)

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Take back claims of this queue: from its `during` to its `ready`.

        Of the queue's criteria those on the ``equality`` columns count; the
        others may have changed since the claim. `lease` is the queue's own by
        default; see :func:`sa_jobqueue.reap`.
        """
        return reap_claims(
            session,
            self.plan.spec,
            lease=self.lease if lease is None else lease,
            max_runtime=max_runtime,
            limit=limit,
        )

    def position(self, session: AnySession, job: Any) -> int | None:
        """Return the place of a job in this queue; see :func:`sa_jobqueue.position`."""
        return positions_in(session, self.plan.spec, [job])[0]

    def positions(self, session: AnySession, jobs: Any) -> list[int | None]:
        """Return the places of jobs in this queue; see :func:`sa_jobqueue.positions`."""
        return positions_in(session, self.plan.spec, jobs)

    def finish_rate(self, session: AnySession, *, over: timedelta = RECENT) -> float | None:
        """Return this queue's finishes per second; see :func:`sa_jobqueue.finish_rate`."""
        return finish_rate_of(session, self._finishes, over)

    def waiting_time(
        self, session: AnySession, job: Any, *, over: timedelta = RECENT
    ) -> timedelta | None:
        """Estimate how long a job waits still; see :func:`sa_jobqueue.waiting_time`."""
        return waiting_time_in(session, self._finishes, job, over)

    @property
    def _finishes(self) -> Finishes:
        return Finishes(self.plan.spec, self.then)

    @property
    def ready(self) -> str:
        """The word of the status that claims leave, and failed attempts return to."""
        return self.plan.spec.ready
