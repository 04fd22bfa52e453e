"""Events: functions are called once a verb's transaction is committed.

::

    listen(Email, "after_claim", count_claims)

    @listens_for(outbox, "after_fail")
    def page_somebody(event: Event) -> None:
        for job in event.jobs:
            pager.send(f"email {job.key}: {event.error}")

======================  =====================================================
``event``               Event and EventJob, and who is told of them
``listeners``           listen, listens_for, remove; new jobs that a flush inserts
``history_table``       history_table, HistoryTable: events as rows; job_records reads them
``notes``               what the verbs call, and what is done after the COMMIT
======================  =====================================================
"""

from .event import EVENTS, Event, EventJob
from .history_table import HistoryTable, JobRecord, history_table, job_records
from .listeners import listen, listens_for, remove

__all__ = [
    "EVENTS",
    "Event",
    "EventJob",
    "HistoryTable",
    "JobRecord",
    "history_table",
    "job_records",
    "listen",
    "listens_for",
    "remove",
]
