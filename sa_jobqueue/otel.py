"""Traces by OpenTelemetry: from the request that enqueued a job to its finish. Extra ``otel``.

::

    class Email(JobMixin, TraceMixin, Base): ...   # its column keeps the trace of the enqueuer

    trace_events([outbox, reports])                # in each process that enqueues or works

Names and attributes are those of OpenTelemetry's conventions for messaging:
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from .events import Event
from .events.event import EventFunction
from .events.listeners import Remembered, observe
from .version import __version__

__all__ = ["TraceMixin", "trace_events"]

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


#: A span for the end of claims has so many links at most.
LINKS = 128

#: The events that end the span of a handler.
ENDS = ("after_finish", "after_fail", "after_release", "after_cancel", "after_lost")


def trace_events(
    queues: Mapping[str, Any] | Iterable[Any], *, tracer_provider: TracerProvider | None = None
) -> None:
    """Make spans of what this process does with queues, from now on: once, at its start.

    ``send email`` is made by an enqueue, ``receive email`` by a claim, ``process email`` by a
    worker's call of a handler, and ``settle email`` by the end of claims. The span of a handler is
    a child of the span that enqueued its job, where the class has
    :class:`~sa_jobqueue.otel.TraceMixin`. It links to that of the claim, ends when the job's end is
    committed, and is the current span inside of the handler. Each is made after its COMMIT.

    Args:
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
        tracer_provider: None: the global one.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """
    tracer = get_tracer("sa_jobqueue", __version__, tracer_provider)
    observe(queues, lambda name: _Spans(name, tracer).listeners())


class _Spans:
    """The spans of one queue."""

    def __init__(self, name: str, tracer: Tracer) -> None:
        self._name, self._tracer = name, tracer
        self._claims: Remembered[SpanContext] = Remembered()
        self._handlers: Remembered[Span] = Remembered()

    def listeners(self) -> dict[str, EventFunction]:
        """Return what is called, by the names of the events."""
        return {
            "after_enqueue": lambda event: self._span("send", event, SpanKind.PRODUCER).end(),
            "after_claim": self._receive,
            "after_start": self._process,
            **dict.fromkeys(ENDS, self._settle),
        }

    def _receive(self, event: Event) -> None:
        span = self._span("receive", event, SpanKind.CLIENT)
        span.end()
        for job in event.jobs:
            self._claims.remember(job.key, span.get_span_context())

    def _process(self, event: Event) -> None:
        """Begin a handler's span, and make it the current one of the handler's context."""
        (job,) = event.jobs
        claim = self._claims.forget(job.key)
        span = self._span(
            "process",
            event,
            SpanKind.CONSUMER,
            context=context_of(job.entity),
            links=() if claim is None else (Link(claim),),
        )
        span.set_attribute("messaging.message.id", ",".join(map(str, job.key)))
        if job.attempts is not None:
            span.set_attribute("sa_jobqueue.attempt", job.attempts)
        if job.owner is not None:
            span.set_attribute("messaging.client.id", job.owner)
        attach(set_span_in_context(span))  # never detached: the context is the handler's alone
        if before := self._handlers.remember(job.key, span):
            before.end()

    def _settle(self, event: Event) -> None:
        """End the spans of the handlers, and tell of the end of their claims."""
        for job in event.jobs:
            self._claims.forget(job.key)
        handlers = [*filter(None, [self._handlers.forget(job.key) for job in event.jobs])]
        context = (
            set_span_in_context(handlers[0]) if len(event.jobs) == len(handlers) == 1 else None
        )
        links = [Link(span.get_span_context()) for span in handlers[:LINKS]]
        settle = self._span(
            "settle", event, SpanKind.CLIENT, context=context, links=() if context else links
        )
        for span in (*handlers, settle):
            if event.name == "after_fail":
                span.set_status(StatusCode.ERROR, event.error)
            elif event.name == "after_lost":
                span.set_status(StatusCode.ERROR, "the claim was lost")
            span.end()

    def _span(self, operation: str, event: Event, kind: SpanKind, **options: Any) -> Span:
        attributes: dict[str, Any] = {
            "messaging.system": "sa_jobqueue",
            "messaging.operation.type": operation,
            "messaging.operation.name": event.verb,
            "messaging.destination.name": self._name,
        }
        if operation != "process":
            attributes["messaging.batch.message_count"] = event.number
        return self._tracer.start_span(
            f"{operation} {self._name}", kind=kind, attributes=attributes, **options
        )
