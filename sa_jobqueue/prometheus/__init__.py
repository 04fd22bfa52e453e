"""Metrics for Prometheus; it needs the extra ``prometheus``.

::

    count_events([outbox, reports])                            # what this process does
    REGISTRY.register(QueueCollector(engine, [outbox, reports]))  # how full the queues are
    start_http_server(9100)

Every process counts what it does itself. The queues' depth and age are read from the database at
each scrape, so one process is enough for that: ``sa-jobqueue metrics shop.queues --port 9100``.
The only labels are the name of the queue, the event and the state of workers.

======================  =====================================================
``collector``           QueueCollector: depth, age, workers, read at each scrape
``counters``            count_events: what the verbs of this process do
======================  =====================================================
"""

from .collector import QueueCollector
from .counters import count_events

__all__ = ["QueueCollector", "count_events"]
