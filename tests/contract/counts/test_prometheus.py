"""Metrics for Prometheus: what a scrape reads, and what the verbs count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner
from sa_jobqueue.control import pause, register_worker

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import overview, reading, workers_needed
from sa_jobqueue.prometheus import QueueCollector, count_events
from sa_jobqueue.worker import Worker
from tests.contract.counts.models import TABLES, Parcel, Pigeon, boxes, parcels
from tests.support import SERVERS, make_engine

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

MINUTE = timedelta(minutes=1)


@pytest.fixture
def registry(engine: Engine) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(QueueCollector(engine, [JobQueue(Parcel), JobQueue(Pigeon)]))
    return registry


def read(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    labels = {"queue": "sent_parcel", **labels}
    return registry.get_sample_value(f"jobqueue_{name}", labels)


def test_a_scrape_reads_depth_age_and_failures(
    registry: CollectorRegistry, session: Session
) -> None:
    parcels = JobQueue(Parcel)
    parcels.enqueue(session, [{"max_attempts": 1}, {}, {}])
    session.commit()
    first = parcels.claim(session, owner="w").first()
    parcels.fail(session, first, error="lost")
    parcels.claim(session, owner="w")
    session.commit()

    found = {name: read(registry, name) for name in ("due_jobs", "claimed_jobs", "failed_jobs")}

    assert found == {"due_jobs": 1, "claimed_jobs": 1, "failed_jobs": 1}
    assert 0 <= (read(registry, "oldest_due_seconds") or 0) < 60
    # Where the claim index has done rows too, it finds them; else no index does.
    assert read(registry, "failed_jobs", queue="pigeon") in (0, None)


def test_a_scrape_reads_pauses_and_workers(
    registry: CollectorRegistry, engine: Engine, session: Session
) -> None:
    with Owner(engine) as owner:
        register_worker(session, owner.name, [Parcel], tables=TABLES)
        pause(session, Parcel, tables=TABLES)
        session.commit()

        states = {state: read(registry, "workers", state=state) for state in ("alive", "dead")}
        assert states == {"alive": 1, "dead": 0}
    assert read(registry, "workers", state="dead") == 1
    assert read(registry, "paused") == 1
    assert read(registry, "paused", queue="pigeon") == 0


def test_a_process_counts_what_it_does(engine: Engine, session: Session) -> None:
    registry = CollectorRegistry()
    parcels: JobQueue[Any] = JobQueue(Parcel)
    count_events([parcels], registry=registry)
    session.add(Parcel(max_attempts=1))
    session.commit()
    parcels.enqueue(session, [{}, {}])
    session.commit()

    def handler(parcel: Parcel) -> None:
        if parcel.max_attempts == 1:
            raise ValueError

    Worker(engine, parcels, handler, drain=True).run()

    counted = {
        event: read(registry, "events_total", event=event)
        for event in ("enqueued", "claimed", "finished", "failed", "lost", "reaped")
    }
    assert list(counted.values()) == [3, 3, 2, 1, 0, 0]
    assert read(registry, "job_seconds_count") == 3
    assert 0 < (read(registry, "job_seconds_sum") or 0) < 60


def test_an_autoscaler_learns_how_many_workers_a_drain_needs(
    engine: Engine, session: Session
) -> None:
    parcels = JobQueue(Parcel)
    (empty,) = overview(session, [parcels])
    parcels.enqueue(session, [{}] * 700)
    session.commit()
    (unknown,) = overview(session, [parcels])
    with Owner(engine) as owner:
        register_worker(session, owner.name, [Parcel], tables=TABLES)
        parcels.complete(session, parcels.claim(session, owner=owner, limit=100))
        session.commit()
        (seen,) = overview(session, [parcels])

    assert (workers_needed(empty, MINUTE), workers_needed(unknown, MINUTE)) == (0, None)
    assert seen.rate is not None
    expected = 600 / seen.rate / 60
    assert expected <= (workers_needed(seen, MINUTE) or 0) < expected + 1


def test_a_queue_whose_migration_has_not_run_has_no_samples_and_the_others_have(
    fresh_database: URL,
) -> None:
    engine = make_engine(fresh_database)
    Parcel.metadata.create_all(engine, tables=[Parcel.__table__])  # type: ignore[list-item]  # a Table
    registry = CollectorRegistry()
    registry.register(QueueCollector(engine, [JobQueue(Parcel), JobQueue(Pigeon)]))

    assert read(registry, "due_jobs") == 0
    assert read(registry, "due_jobs", queue="pigeon") is None
    engine.dispose()


@pytest.mark.only_on(*SERVERS)
def test_a_locked_table_costs_the_metrics_of_its_queue_alone(
    registry: CollectorRegistry,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reading, "TIME_LIMIT", timedelta(seconds=1))
    postgresql = engine.dialect.name == "postgresql"
    with engine.connect() as connection:
        how = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE" if postgresql else "LOCK TABLES {} WRITE"
        connection.exec_driver_sql(how.format("sent_parcel"))
        due = [read(registry, "due_jobs", queue=name) for name in ("sent_parcel", "pigeon")]
        if not postgresql:
            connection.exec_driver_sql("UNLOCK TABLES")

    assert due == [None, 0]
    assert "sent_parcel has no metrics now" in caplog.text


def test_queues_of_one_name_are_told_apart_by_names_of_their_own(
    engine: Engine, session: Session
) -> None:
    registry = CollectorRegistry()
    registry.register(QueueCollector(engine, {"all": parcels, "boxes": boxes}))
    parcels.enqueue(session, [{"kind": "box"}, {"kind": "bag"}])
    session.commit()

    due = [read(registry, "due_jobs", queue=name) for name in ("all", "boxes")]
    assert due == [2, 1]
