"""Traces by OpenTelemetry: from the request that enqueued a job to its finish. Extra ``otel``.

::

    class Email(JobMixin, TraceMixin, Base): ...   # its column keeps the trace of the enqueuer

    trace_events([outbox, reports])                # in each process that enqueues or works

======================  =====================================================
``trace_mixin``         TraceMixin: the column ``traceparent``
``spans``               trace_events: spans of what this process does
======================  =====================================================
"""

from .spans import trace_events
from .trace_mixin import TraceMixin

__all__ = ["TraceMixin", "trace_events"]
