"""oslo.db (OpenStack): verbs in the sessions of its enginefacade, and its own exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, String, select
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, claim, complete, enqueue, fail
from sa_jobqueue.worker import Worker

enginefacade = pytest.importorskip("oslo_db.sqlalchemy.enginefacade")
models: Any = pytest.importorskip("oslo_db.sqlalchemy.models")
exception = pytest.importorskip("oslo_db.exception")

# oslo.db knows the dialect mysql, and cannot ask for tables by mariadb.
pytestmark = pytest.mark.only_on("sqlite", "postgresql", "mysql")


class Job(
    JobMixin,
    RetryMixin,
    models.TimestampMixin,  # type: ignore[misc]  # of a package without types
    declarative_base(cls=models.ModelBase),  # type: ignore[misc]  # a call
):
    """A queue as an OpenStack service declares it."""

    __tablename__ = "oslo_job"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


@enginefacade.transaction_context_provider
class Context:
    """The request's context, which carries the transaction."""


@pytest.fixture
def facade(fresh_database: URL) -> Iterator[Any]:
    made = enginefacade.transaction_context()
    made.configure(connection=fresh_database.render_as_string(hide_password=False))
    engine = made.writer.get_engine()
    Job.metadata.create_all(engine)
    yield made
    engine.dispose()


@pytest.fixture
def context(facade: Any) -> Context:
    """A context, and two jobs."""
    context = Context()
    with facade.writer.using(context) as session:
        enqueue(session, Job, [{"name": "a"}, {"name": "b"}])
    return context


def statuses(facade: Any, context: Context) -> list[str]:
    with facade.reader.using(context) as session:
        return list(session.scalars(select(Job.status).order_by(Job.id)))


def test_a_writer_commits_claims_and_finishes(facade: Any, context: Context) -> None:
    with facade.writer.using(context) as session:
        first, second = claim(session, Job, owner="w", limit=2)
    assert statuses(facade, context) == ["claimed", "claimed"]

    with facade.writer.using(context) as session:
        complete(session, first)
        fail(session, second)

    assert statuses(facade, context) == ["done", "unclaimed"]
    assert first.updated_at is not None  # its onupdate


def test_a_reader_commits_no_claim(facade: Any, context: Context) -> None:
    with facade.reader.using(context) as session:
        claim(session, Job, owner="w")

    assert statuses(facade, context) == ["unclaimed"] * 2


def test_a_worker_takes_the_writers_sessionmaker_or_engine(facade: Any, context: Context) -> None:
    maker, engine = facade.writer.get_sessionmaker(), facade.writer.get_engine()
    names: list[str] = []

    for bind in (maker, engine):
        Worker(bind, JobQueue(Job), lambda job: names.append(job.name), drain=True).run()

    assert names == ["a", "b"]
    assert statuses(facade, context) == ["done"] * 2
