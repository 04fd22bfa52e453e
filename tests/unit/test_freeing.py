"""The library keeps nothing alive that the application has dropped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import ref

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from sa_jobqueue import (
    ConstantBackoff,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
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
from sa_jobqueue.dialects import database_of


def new_class() -> type[Any]:
    """Map a class with every mixin, in its own registry and metadata."""

    class Base(DeclarativeBase):
        pass

    class Letter(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, RoundMixin, Base):
        __tablename__ = "letter"
        id: Mapped[int] = mapped_column(primary_key=True)

    return Letter


def new_engine(entity: type[Any]) -> Engine:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    entity.metadata.create_all(engine)
    return engine


def use(engine: Engine, queue: JobQueue[Any]) -> None:
    """Call every verb that keeps statements."""
    entity = queue.entity
    with Session(engine) as session:
        enqueue(session, entity, [{"id": number} for number in range(20)])
        finishes: list[Callable[[Any], None]] = [
            lambda job: complete(session, job),
            lambda job: complete(session, job, delete=True),
            lambda job: fail(session, job, backoff=ConstantBackoff(timedelta(0))),
            lambda job: release(session, job),
            lambda job: renew(session, job),
        ]
        for finish in finishes:
            finish(queue.claim(session, owner="w"))
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


def class_and_engine() -> list[ref[Any]]:
    entity = new_class()
    engine = new_engine(entity)
    queue = JobQueue(entity)
    use(engine, queue)
    mapping = queue.mapping
    return [ref(found) for found in (entity, mapping, mapping.table, queue.plan, engine)]


def class_with_its_metadata_alive() -> list[ref[Any]]:
    entity = new_class()
    engine = new_engine(entity)
    queue = JobQueue(entity)
    use(engine, queue)
    kept.append(entity.metadata)
    return [ref(entity), ref(queue.mapping)]


kept: list[Any] = []


@pytest.mark.parametrize("made", [class_and_engine, class_with_its_metadata_alive])
def test_a_class_that_nobody_uses_any_more_is_freed(made: Callable[[], list[ref[Any]]]) -> None:
    dropped = made()

    collect()

    assert [found() for found in dropped] == [None] * len(dropped)


def test_an_engine_that_nobody_uses_any_more_is_freed_while_its_queue_lives() -> None:
    queue = JobQueue(new_class())

    def used_engine() -> list[ref[Any]]:
        engine = new_engine(queue.entity)
        use(engine, queue)
        with engine.connect() as connection:
            return [ref(engine), ref(engine.dialect), ref(database_of(connection))]

    dropped = used_engine()
    collect()

    assert [found() for found in dropped] == [None] * 3


def test_a_queue_that_nobody_uses_any_more_is_freed_while_its_engine_lives() -> None:
    entity = new_class()
    engine = new_engine(entity)

    def used_queue() -> ref[Any]:
        queue = JobQueue(entity)
        use(engine, queue)
        return ref(queue.plan)

    dropped = used_queue()
    collect()

    assert dropped() is None
