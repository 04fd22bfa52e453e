"""The library keeps nothing alive that the application has dropped."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any
from weakref import ref

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    cancel,
    complete,
    enqueue,
    fail,
    position,
    prune,
    reap,
    release,
    renew,
    retry,
    start_round,
)
from tests.unit.mapping import map_job


def new_class() -> type[Any]:
    """Map a class with every mixin, in its own registry and metadata."""
    mapped: type[Any] = map_job(JobMixin, PriorityMixin, RetryMixin, RoundMixin)
    return mapped


def new_engine(entity: type[Any]) -> Engine:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    entity.metadata.create_all(engine)
    return engine


def use(engine: Engine, queue: JobQueue[Any]) -> None:
    """Call every verb that keeps statements."""
    entity = queue.entity
    with Session(engine) as session:
        enqueue(session, entity, [{"id": number} for number in range(20)])
        for finish in (complete, fail, release, renew):
            finish(session, queue.claim(session, owner="w"))
        complete(session, queue.claim(session, owner="w"), delete=True)
        complete(session, queue.claim_rows(session, owner="w"))
        jobs = session.query(entity).all()
        cancel(session, jobs[:9])
        retry(session, jobs)
        position(session, jobs[0])
        queue.position(session, jobs[0])
        reap(session, entity, max_runtime=timedelta(0))
        start_round(session, entity)
        prune(session, entity, older_than=timedelta(0))
        session.commit()
    engine.dispose()


def collect() -> None:
    """Collect twice: values keyed by an engine are garbage only after the engine is gone."""
    gc.collect()
    gc.collect()


def test_a_class_and_its_engine_that_nobody_uses_any_more_are_freed_though_the_metadata_lives() -> (
    None
):
    def used() -> tuple[Any, list[ref[Any]]]:
        entity = new_class()
        engine = new_engine(entity)
        queue = JobQueue(entity)
        use(engine, queue)
        mapping = queue.mapping
        found = (entity, mapping, queue.plan, engine, engine.dialect)
        return entity.metadata, [ref(each) for each in found]

    _metadata, dropped = used()
    collect()

    assert [found() for found in dropped] == [None] * len(dropped)


def test_an_engine_and_a_queue_are_freed_while_the_other_lives() -> None:
    queue = JobQueue(new_class())
    kept = new_engine(queue.entity)

    def used() -> list[ref[Any]]:
        engine, other = new_engine(queue.entity), JobQueue(queue.entity)
        use(engine, queue)
        use(kept, other)
        return [ref(engine), ref(engine.dialect), ref(other.plan)]

    dropped = used()
    collect()

    assert [found() for found in dropped] == [None] * 3
