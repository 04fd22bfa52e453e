"""Turn a table of your SQLAlchemy application into a job queue.

::

    class Email(JobMixin, Base):
        __tablename__ = "email"
        id: Mapped[int] = mapped_column(primary_key=True)
        recipient: Mapped[str] = mapped_column(String(100))

    emails = claim(session, Email, Email.recipient.like("a%"), owner="mailer-1", limit=100)
    session.commit()
    for email in emails:
        send(email)
    complete(session, emails)
    session.commit()

A job is handled at least once, and finished behind a fence: effects that are written in the
transaction of the finish happen exactly once.

Workers live in :mod:`sa_jobqueue.worker`, workflows in :mod:`sa_jobqueue.workflow`, bulk loads in
:mod:`sa_jobqueue.bulk`, and the verbs for an AsyncSession in :mod:`sa_jobqueue.asyncio`. The types
that a verb returns, and that nobody constructs, live with the verb: in
:mod:`sa_jobqueue.verbs`, :mod:`sa_jobqueue.counts`, :mod:`sa_jobqueue.rounds` and
:mod:`sa_jobqueue.owners`.
"""

import sys
from importlib import import_module

from .counts.position import position
from .counts.stats import count_by_status, stats
from .databases import assume_locks, is_transient
from .databases.clock import utc_now
from .errors import (
    ArgumentError,
    ClaimLost,
    JobFailed,
    JobQueueError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    MissingTable,
    NotClaimed,
    UnsupportedDatabase,
)
from .fence.claim import Claim, fence_of, with_fence
from .fence.token import Fence
from .model.mixins import (
    ExpiryMixin,
    JobMixin,
    PriorityMixin,
    QueueColumns,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from .model.status import JobStatus
from .model.transitions import TRANSITIONS
from .owners.alive import OwnerState, owner_state
from .owners.named_lock import NamedLock, named_lock
from .owners.owner import Owner, connection_owner
from .queue import JobQueue, claim_statements
from .rounds import round_progress, start_round
from .strategies.advisory import advisory_session
from .verbs.backoff import Backoff, ConstantBackoff, ExponentialBackoff
from .verbs.claim import claim, claimed_by
from .verbs.enqueue import enqueue
from .verbs.finish import cancel_claimed, complete, fail, release, renew
from .verbs.manage import cancel, prune, reprioritize, retry
from .verbs.reap import reap
from .version import __version__
from .waiting import wait

__all__ = [
    "TRANSITIONS",
    "ArgumentError",
    "Backoff",
    "Claim",
    "ClaimLost",
    "ConstantBackoff",
    "ExpiryMixin",
    "ExponentialBackoff",
    "Fence",
    "JobFailed",
    "JobMixin",
    "JobQueue",
    "JobQueueError",
    "JobStatus",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "MissingTable",
    "NamedLock",
    "NotClaimed",
    "Owner",
    "OwnerState",
    "PriorityMixin",
    "QueueColumns",
    "RetryMixin",
    "RoundMixin",
    "ScheduleMixin",
    "UnsupportedDatabase",
    "__version__",
    "advisory_session",
    "assume_locks",
    "cancel",
    "cancel_claimed",
    "claim",
    "claim_statements",
    "claimed_by",
    "complete",
    "connection_owner",
    "count_by_status",
    "enqueue",
    "fail",
    "fence_of",
    "is_transient",
    "named_lock",
    "owner_state",
    "position",
    "prune",
    "reap",
    "release",
    "renew",
    "reprioritize",
    "retry",
    "round_progress",
    "start_round",
    "stats",
    "utc_now",
    "wait",
    "with_fence",
]

# In an env.py of Alembic: so that autogenerate asks what becomes of old rows, and makes no job of
# each. An application that does not load Alembic does not load our migrations either.
if "alembic.autogenerate" in sys.modules:
    import_module(f"{__name__}.migration")
