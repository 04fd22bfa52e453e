"""Counts: what queues hold now, read by indexes alone, so that big tables may be asked often.

::

    for seen in overview(session, [outbox, reports]):
        print(seen.name, seen.due, seen.oldest, seen.failed or "not indexed")

    for job in list_jobs(session, outbox, Listed.FAILED, limit=20):
        print(job.key, job.attempts, job.last_error)

With their indexes, no statement reads done rows, and none counts further than it must: ``Count``
says "10,000+".
Failed and cancelled jobs are counted where an index finds them: on MySQL and MariaDB the reap
index, elsewhere ``__queue_args__ = {"failed_index": True}`` declares it. Without the index a list
has those among the last rows by primary key.

======================  =====================================================
``stats``               overview, stats and the rate of finishes
``behind``              the due jobs that wait behind others of their key
``position``            the place of a job in its queue, and how long it waits
``jobs``                list_jobs: due, claimed, failed and other jobs, page by page
``count``               a number that may be more; the jobs that wait; the tables and indexes
======================  =====================================================
"""

from .count import Count
from .jobs import (
    Failures,
    Listed,
    ListedJob,
    count_failed,
    failures_by_kind,
    list_jobs,
    why_incomplete,
)
from .stats import QueueStats, overview, workers_needed

__all__ = [
    "Count",
    "Failures",
    "Listed",
    "ListedJob",
    "QueueStats",
    "count_failed",
    "failures_by_kind",
    "list_jobs",
    "overview",
    "why_incomplete",
    "workers_needed",
]
