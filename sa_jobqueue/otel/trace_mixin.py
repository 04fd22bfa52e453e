"""TraceMixin: a job remembers the span that enqueued it."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

#: The one header of W3C Trace Context that a job keeps.
TRACEPARENT = "traceparent"

_propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the current span as W3C Trace Context writes it; None: there is no span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(TRACEPARENT)


class TraceMixin:
    """Add ``traceparent``: the span that was current when the job was inserted.

    The ORM and :func:`sa_jobqueue.enqueue` set it. Rows of plain SQL and of bulk loads have none,
    and each of their attempts begins a trace of its own.
    """

    traceparent: Mapped[str | None] = mapped_column(String(55), default=current_traceparent)


def context_of(job: Any) -> Context | None:
    """Return the context in which a job was enqueued; None: it keeps none, or not a valid one."""
    kept = getattr(job, TRACEPARENT, None)
    return _propagator.extract({TRACEPARENT: kept}, Context()) or None if kept else None
