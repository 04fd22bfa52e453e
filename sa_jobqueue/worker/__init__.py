"""The worker: claim jobs, handle them, finish them in the transaction of the next claim.

::

    @outbox.handler
    def send(email: Email) -> None: ...

    Worker(engine, outbox, limit=10).run()

A handler gets a job that is detached from its session, and writes in a session of its own.
A transactional handler writes in the transaction that finishes its job. A handler returns
None or :class:`Done` if the job is done, otherwise :class:`Retry` or :class:`Cancel`. A handler
that raises an exception fails only its own job.

Each transaction of the worker finishes the handled jobs and claims the next jobs. The worker
runs the transaction again after a deadlock, a busy database or a lost connection: a handled
job is then finished, and not handled again.

The worker claims as an Owner, so that other workers notice its death. It renews its claims as
long as their jobs are in hand, and reaps the claims of dead owners at intervals.

======================  =====================================================
``loop``                Worker: its arguments, and the parts of its run
``crew``                the threads of a run: slots for handlers, and the supervisor
``hands``               the jobs in hand, and what each thread does next
``in_hand``             one job in hand
``attempts``            calls a handler, and notes the outcome of its job
``calls``               how handlers are called
``awaited``             whether a handler must be awaited
``idle``                when the next claim is due
``chore``               what the supervisor does at intervals
``lanes``               a queue with its handler; the order of several lanes
``turns``               a turn: one transaction that finishes, releases, claims
``refusals``            after a refused turn, finishes each job by itself
``locked_rows``         rows that others have locked, found without a wait
``set_aside``           jobs that can be neither finished nor failed
``passed_over``         rows that cannot be claimed hold up no other job
``transactions``        transactions that are run again after a temporary error
``transactional``       the transaction of a handler, which finishes its job
``kept_connection``     keeps a connection of the pool for the turns of a run
``sessions``            whether a worker can use the sessions of a sessionmaker
``detached``            logs changes that a handler made to its detached job
``job_context``         what a handler may ask about its attempt
``outcomes``            what a handler returns, and what became of its job
``log_records``         the log records of jobs
``events``              tells the listeners of a queue what its worker does
``heartbeat``           renews claims while their jobs are in hand
``renewal``             a renewal waits for no row that somebody has locked
``pool``                whether the engine has enough connections
``reaper``              reaps claims at intervals
``beside``              the chores for control tables and schedules
``control``             pauses, stop requests, and the worker's row
``scheduler``           inserts the jobs of schedules that are due
``tries``               chores that may fail without ending the worker
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
    Done,
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
    "Done",
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
