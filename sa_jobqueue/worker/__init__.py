"""The worker: claim jobs, handle them, finish them in the transaction of the next claim.

::

    @outbox.handler
    def send(email: Email) -> None: ...

    Worker(engine, outbox, limit=10).run()

A handler gets the job detached from its session: what it writes, it writes in
a session of its own. A transactional one writes in the transaction that finishes its
job. It returns None when the job is done, :class:`Retry` or :class:`Cancel` when it wants
something else. A handler that raises an exception fails its own job and no other.

The worker owns its transactions, so it runs them again after a deadlock, a
busy database or a lost connection; a job that was handled is then finished,
not handled again. Each transaction finishes the handled jobs and claims the
next ones.

The worker claims as an Owner, so that others notice its death. It renews its claims as
long as their jobs are in hand, and now and then it reaps the claims of dead owners.

======================  =====================================================
``loop``                Worker: turns, handlers, pauses
``lanes``               a queue with its handler; the order of several lanes
``turns``               a turn: one transaction that finishes, releases, claims
``refusals``            the slow way of a refused turn: each job for itself
``set_aside``           jobs that can be neither finished nor failed
``transactions``        transactions that are run again after a temporary error
``transactional``       the transaction of a handler, which finishes its job
``detached``            what a handler did to its detached job
``job_context``         what a handler may ask about its attempt
``batch``               the jobs in hand
``outcomes``            what a handler returns, and what became of its job
``heartbeat``           renews claims while their jobs are in hand
``reaper``              takes back claims, now and then
``owner_name``          the name that the worker claims under
``options``             keyword arguments that AsyncWorker has, too
======================  =====================================================
"""

from .batch import Batch
from .job_context import JobContext, job_context
from .lanes import Lane, lane_of
from .loop import LONGEST_POLL, SHORTEST_POLL, Worker
from .options import WorkerOptions
from .outcomes import (
    Cancel,
    Failed,
    Outcome,
    Retry,
)
from .owner_name import default_owner
from .reaper import REAP_EVERY
from .transactions import PATIENCE

__all__ = [
    "LONGEST_POLL",
    "PATIENCE",
    "REAP_EVERY",
    "SHORTEST_POLL",
    "Batch",
    "Cancel",
    "Failed",
    "JobContext",
    "Lane",
    "Outcome",
    "Retry",
    "Worker",
    "WorkerOptions",
    "default_owner",
    "job_context",
    "lane_of",
]
