"""The worker: claim, handle, finish in the same turn as the next claim.

::

    def send(email: Email) -> None: ...

    Worker(engine, JobQueue(Email), send, limit=10).run()

A handler gets the job detached from its session: what it writes, it writes in
a session of its own. It returns None when the job is done, or says what it
wants instead: :class:`Retry` or :class:`Cancel`. A handler that raises fails
its own job and no other.

The worker owns its transactions, so it runs them again after a deadlock, a
busy database or a lost connection; a job that was handled is then finished,
not handled again. Each transaction finishes what was handled and claims what
is next.

It claims as an Owner, whose death others notice; it renews its claims for as
long as their jobs are in hand, and now and then takes back those of the dead.

======================  =====================================================
``loop``                the Worker: turns, handlers, pauses
``turns``               one transaction: finish, release, claim
``lanes``               a queue and its handler; which of several comes next
``batch``               the jobs in hand
``outcomes``            what a handler says, and what became of the job
``owning``              under which name it claims
``patience``            errors that pass are waited out
``rescue``              taking back the claims of the dead, now and then
======================  =====================================================
"""

from .batch import Batch
from .lanes import Lane
from .loop import LONGEST_POLL, SHORTEST_POLL, Worker
from .outcomes import (
    Cancel,
    Failed,
    Outcome,
    Retry,
)
from .owning import default_owner, process_label
from .patience import PATIENCE
from .rescue import REAP_EVERY

__all__ = [
    "LONGEST_POLL",
    "PATIENCE",
    "REAP_EVERY",
    "SHORTEST_POLL",
    "Batch",
    "Cancel",
    "Failed",
    "Lane",
    "Outcome",
    "Retry",
    "Worker",
    "default_owner",
    "process_label",
]
