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
``loop``                Worker: what it is given, and the parts of its run
``crew``                the threads of a run: slots for handlers, and the supervisor
``hands``               the jobs in hand: what each thread is to do next
``in_hand``             one job in hand
``attempts``            a handler is called, and its job gets an outcome
``calls``               how handlers are called
``awaited``             whether a handler has to be awaited
``idle``                when the next claim is due
``brake``               slows down the claims from a queue whose jobs all fail
``chore``               what the supervisor does beside
``lanes``               a queue with its handler; the order of several lanes
``turns``               a turn: one transaction that finishes, releases, claims
``refusals``            the slow way of a refused turn: each job for itself
``set_aside``           jobs that can be neither finished nor failed
``transactions``        transactions that are run again after a temporary error
``transactional``       the transaction of a handler, which finishes its job
``sessions``            whether the sessions that it is given can be used
``detached``            what a handler did to its detached job
``job_context``         what a handler may ask about its attempt
``outcomes``            what a handler returns, and what became of its job
``heartbeat``           renews claims while their jobs are in hand
``renewal``             a renewal waits for no row that somebody has locked
``pool``                whether the engine has enough connections
``reaper``              reaps claims at intervals
``beside``              the chores that come with control tables and schedules
``control``             pauses, stop requests, and the worker's row
``scheduler``           inserts the jobs of schedules that are due
``tries``               what a worker does beside its jobs may fail
``owner_name``          the name that the worker claims under
``options``             keyword arguments that AsyncWorker has, too
======================  =====================================================
"""

from ..errors import HandlerTimeout
from .idle import LONGEST_POLL, SHORTEST_POLL
from .job_context import JobContext, job_context
from .lanes import Lane, lane_of
from .loop import GRACE, Worker
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
    "GRACE",
    "LONGEST_POLL",
    "PATIENCE",
    "REAP_EVERY",
    "SHORTEST_POLL",
    "Cancel",
    "Failed",
    "HandlerTimeout",
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
