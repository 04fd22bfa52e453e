"""Traces: from the span that enqueued a job to its finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from sqlalchemy import URL, Engine, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, RetryMixin, claim, enqueue
from sa_jobqueue.otel import TraceMixin, trace_events
from sa_jobqueue.worker import Worker
from tests.running import Run, runs
from tests.support import make_engine, until, with_empty_tables

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


class Base(DeclarativeBase):
    pass


class Telegram(JobMixin, RetryMixin, TraceMixin, Base):
    """A job with attempts."""

    __tablename__ = "telegram"
    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(20), default="stop")


@pytest.fixture
def engine(db_url: URL) -> Engine:
    return with_empty_tables(make_engine(db_url), Base.metadata)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


Telegrams = JobQueue[Telegram]


@pytest.fixture(params=["Worker", "AsyncWorker"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Run:
    return runs(request.param, engine)


@pytest.fixture(autouse=True)
def telegrams(provider: TracerProvider) -> Iterator[Telegrams]:
    """A queue that is traced for one test."""
    queue: Telegrams = JobQueue(Telegram)
    before = queue.mapping.listeners
    trace_events([queue], tracer_provider=provider)
    yield queue
    queue.mapping.listeners = before


Spans = Callable[[str], list[ReadableSpan]]


@pytest.fixture
def named(spans: InMemorySpanExporter) -> Spans:
    """Return the ended spans of a name, without the queue's."""
    return lambda name: [
        span for span in spans.get_finished_spans() if span.name == f"{name} telegram"
    ]


def sent(session: Session, provider: TracerProvider, count: int = 1) -> ReadableSpan:
    """Enqueue jobs in a span, as a request does, and return that span."""
    with provider.get_tracer("shop").start_as_current_span("POST /order") as request:
        session.add_all([Telegram(max_attempts=1) for _ in range(count)])
        session.commit()
    assert isinstance(request, ReadableSpan)
    return request


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_one_trace_leads_from_the_request_to_the_finish_by_the_names_of_the_conventions(
    telegrams: Telegrams, session: Session, provider: TracerProvider, run: Run, named: Spans
) -> None:
    request = sent(session, provider)
    current = []

    with run({telegrams: lambda job: current.append(get_current_span().get_span_context())}):
        until(lambda: named("settle"))

    spans = [one for name in ("send", "receive", "process", "settle") for one in named(name)]
    send, receive, process, settle = spans
    assert parent_of(receive) is None
    assert parent_of(send) == parent_of(process) == id_of(request)
    assert parent_of(settle) == id_of(process) == current[0].span_id
    assert trace_of(request) == trace_of(process) == trace_of(settle)
    assert [link.context.span_id for link in process.links] == [id_of(receive)]
    client = SpanKind.CLIENT
    assert [one.kind for one in spans] == [SpanKind.PRODUCER, client, SpanKind.CONSUMER, client]
    assert dict(process.attributes or {}) == {
        "messaging.system": "sa_jobqueue",
        "messaging.operation.type": "process",
        "messaging.operation.name": "start",
        "messaging.destination.name": "telegram",
        "messaging.message.id": str(session.query(Telegram.id).scalar()),
        "messaging.client.id": (process.attributes or {})["messaging.client.id"],
        "sa_jobqueue.attempt": 1,
    }
    assert (settle.attributes or {})["messaging.operation.name"] == "complete"


def test_a_failed_attempt_is_an_error_in_its_trace(
    telegrams: Telegrams, session: Session, provider: TracerProvider, run: Run, named: Spans
) -> None:
    sent(session, provider)

    def fail(job: Telegram) -> None:
        raise ValueError("the line is down")

    with run({telegrams: fail}):
        until(lambda: named("settle"))

    for span in (*named("process"), *named("settle")):
        assert span.status.status_code is StatusCode.ERROR
        assert "the line is down" in (span.status.description or "")


def test_jobs_that_are_finished_together_are_linked(
    telegrams: Telegrams, session: Session, provider: TracerProvider, named: Spans, engine: Engine
) -> None:
    sent(session, provider, count=3)

    with Session(engine) as own:
        telegrams.complete(own, telegrams.claim(own, owner="w", limit=3))
        own.commit()

    (receive,), (settle,) = named("receive"), named("settle")
    for span in (receive, settle):
        assert (span.attributes or {})["messaging.batch.message_count"] == 3


def test_nothing_is_told_of_a_transaction_that_is_rolled_back(
    session: Session, named: Spans
) -> None:
    session.add(Telegram())
    session.flush()
    claim(session, Telegram, owner="w")
    session.rollback()

    assert named("send") == named("receive") == []


def test_a_job_keeps_its_enqueuer_however_it_is_inserted(
    session: Session, provider: TracerProvider
) -> None:
    with provider.get_tracer("shop").start_as_current_span("POST /order") as request:
        session.add(Telegram())
        enqueue(session, Telegram, [{}, {}])
        session.commit()

    trace = f"{request.get_span_context().trace_id:032x}"
    kept = session.query(Telegram.traceparent).all()
    assert [row.traceparent.split("-")[1] for row in kept] == [trace] * 3


@pytest.mark.parametrize("kept", [None, "", "00-nonsense", "ff-" + "0" * 32 + "-1-01"])
def test_a_job_without_a_valid_parent_begins_a_trace(
    telegrams: Telegrams, session: Session, run: Run, named: Spans, kept: str | None
) -> None:
    session.add(Telegram(traceparent=kept))
    session.commit()

    with run({telegrams: lambda job: None}):
        until(lambda: named("process"))

    (process,) = named("process")
    assert process.parent is None


def test_two_queues_of_one_name_are_refused(telegrams: Telegrams) -> None:
    with pytest.raises(ArgumentError, match="two queues are called 'telegram'"):
        trace_events([telegrams, JobQueue(Telegram)])


def test_a_transactional_handler_belongs_to_the_trace_of_its_enqueuer(
    telegrams: Telegrams, session: Session, provider: TracerProvider, engine: Engine, named: Spans
) -> None:
    request = sent(session, provider)

    @telegrams.handler(transactional=True)
    def handle(own: Session, job: Telegram) -> None:
        job.words = "received"

    Worker(engine, telegrams, drain=True).run()

    (process,) = named("process")
    assert parent_of(process) == id_of(request)
    assert named("settle")
