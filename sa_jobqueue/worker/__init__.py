"""The worker: claim jobs, handle them, finish them in the transaction of the next claim.

::

    @outbox.handler
    def send(email: Email) -> None: ...

    Worker(engine, outbox, limit=10).run()

A handler gets a job that is detached from its session, and writes in a session of its own.
A transactional handler writes in the transaction that finishes its job. A handler returns
None or :class:`Done` if the job is done, otherwise :class:`Retry`, :class:`Release` or
:class:`Cancel`. A handler
that raises an exception fails only its own job.

Each transaction of the worker finishes the handled jobs and claims the next jobs. The worker
runs the transaction again after a deadlock, a busy database or a lost connection: a handled
job is then finished, and not handled again.

The worker claims as an Owner, so that other workers notice its death. It renews its claims as
long as their jobs are in hand, and reaps the claims of dead owners at intervals.

================  ==================================================================
``worker``        Worker: its arguments, its connections, and the parts of its run
``lanes``         a queue with its handler, what the handler returns; several lanes
``in_hand``       one job in hand, its log records, and the lock of its row
``crew``          the jobs in hand, and the threads of a run: slots for handlers, the supervisor
``handlers``      calls a handler, perhaps in a transaction that finishes its job
``turns``         a turn: one transaction that finishes, releases, claims
``passed_over``   rows that cannot be claimed hold up no other job
``transactions``  transactions that are run again after temporary errors; the owner
``deadlines``     a deadline on each call to the database
``chores``        renews claims, reaps, looks at control, runs schedules
================  ==================================================================
"""

from ..errors import HandlerTimeout
from .chores import REAP_EVERY
from .crew import LONGEST_POLL, SHORTEST_POLL
from .handlers import JobContext, job_context
from .lanes import Cancel, Done, Failed, Lane, Outcome, Release, Retry, lane_of
from .transactions import PATIENCE, default_owner
from .worker import DEADLINE, GRACE, Worker

__all__ = [
    "DEADLINE",
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
    "Release",
    "Retry",
    "Worker",
    "default_owner",
    "job_context",
    "lane_of",
]
