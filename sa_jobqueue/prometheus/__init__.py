"""Metrics for Prometheus; it needs the extra ``prometheus``.

::

    count_events([outbox, reports])  # what this process does

Every process counts what it does itself; ``sa-jobqueue metrics`` serves these counts, and the
queues' depth and age, which it reads from the database at each scrape. In a program of your own::

    REGISTRY.register(QueueCollector(engine, [outbox, reports]))
    start_http_server(9100)

The only labels are the name of the queue, the event and the state of workers.

======================  =====================================================
``collector``           QueueCollector: depth, age, workers, read at each scrape
``counters``            count_events: what the verbs of this process do
======================  =====================================================
"""

from .collector import QueueCollector
from .counters import count_events

__all__ = ["QueueCollector", "count_events"]
