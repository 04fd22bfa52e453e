"""Overview: what queues hold now, read by indexes alone, so that big tables may be asked often.

::

    for seen in overview(session, [outbox, reports]):
        print(seen.name, seen.due, seen.oldest, seen.failed or "not indexed")

    for job in failed_jobs(session, outbox, limit=20):
        print(job.key, job.attempts, job.last_error)

With their indexes, no statement reads done rows, and none counts further than it must: ``Count``
says "10,000+".
Failed and cancelled jobs are counted where an index finds them: on MySQL and MariaDB the reap
index, elsewhere ``__queue_args__ = {"failed_index": True}`` declares it. Without the index a list
has those among the last rows by primary key.

======================  =====================================================
``describe``            overview, and what it returns
``waiting``             the jobs that are due, and the next that will be
``failed``              failed and cancelled jobs, by their index
``listing``             list_jobs: due, claimed, failed and other jobs, page by page
``count``               a number that may be more
``age``                 how a duration is written
``schema``              which tables and indexes are there, asked once a minute
======================  =====================================================
"""

from .count import Count
from .describe import QueueOverview, overview, workers_needed
from .failed import FailedJob, count_failed, failed_jobs, why_incomplete
from .listing import Listed, ListedJob, Position, list_jobs

__all__ = [
    "Count",
    "FailedJob",
    "Listed",
    "ListedJob",
    "Position",
    "QueueOverview",
    "count_failed",
    "failed_jobs",
    "list_jobs",
    "overview",
    "why_incomplete",
    "workers_needed",
]
