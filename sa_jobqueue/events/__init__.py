"""Events: functions are called once a verb's transaction is committed.

::

    listen(Email, "after_claim", count_claims)

    @listens_for(outbox, "after_fail")
    def page_somebody(event: Event) -> None:
        for job in event.jobs:
            pager.send(f"email {job.key}: {event.error}")

======================  =====================================================
``event``               Event and EventJob: what a listener is told
``listeners``           listen, listens_for, remove
``history_table``       history_table, HistoryTable: events as rows; job_records reads them
``listener``            a function or a recorder, and which events it is told of
``notes``               what the verbs call, and when the listeners are called
``connection_end``      the same for a verb on a plain Connection
``flushed``             new jobs that a flush inserts
``claimable``           what a verb calls that has made jobs claimable: wake-ups
``channel``             PostgreSQL: the name of a table's channel
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
