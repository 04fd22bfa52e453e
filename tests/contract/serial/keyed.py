"""Queues with serial keys, and the functions that the processes of their tests run."""

from __future__ import annotations

import os
import random
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import Engine, String, func, insert, select, text, true
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin, ScheduleMixin

# Inner: InnoDB's servers list no locks, so an inner function tells the names that are asked for.
from sa_jobqueue.databases import database_of
from tests.contract.claimers import Finished, LogBase, committed, run_processes
from tests.processes import FORKSERVER
from tests.support import make_engine, with_empty_tables


class KeyedBase(DeclarativeBase):
    pass


class Mail(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, KeyedBase):
    """A class with every mixin, and an index for each serial key."""

    __tablename__ = "mail"
    __queue_args__ = {"per_key": ["account_id", ("region", "host")]}  # noqa: RUF012 - as users do
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int | None]
    region: Mapped[str | None] = mapped_column(String(10))
    host: Mapped[str | None] = mapped_column(String(10))


class Note(JobMixin, KeyedBase):
    """A class with JobMixin only, and no index of its serial keys."""

    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int | None]
    name: Mapped[str | None] = mapped_column(String(20))


BY_ACCOUNT = JobQueue(Mail, serial_by=Mail.account_id)
NOTES = JobQueue(Note, serial_by=Note.account_id)
THREE_EACH = JobQueue(Mail, limit_by={Mail.account_id: 3})


def emptied(engine: Engine) -> Engine:
    """Return the engine with empty tables of this module."""
    engine.dispose()
    with_empty_tables(engine, LogBase.metadata)
    return with_empty_tables(engine, KeyedBase.metadata)


def add(session: Session, entity: type[Any], *accounts: int | None, **columns: Any) -> list[Any]:
    """Commit a job for each account, in this order."""
    jobs = [entity(account_id=account, **columns) for account in accounts]
    for job in jobs:
        session.add(job)
        session.flush()
    session.commit()
    return jobs


def ids(jobs: Any) -> list[int]:
    return [job.id for job in jobs]


def claimed(session: Session, entity: type[Any] = Mail) -> dict[int | None, int]:
    """Count the claimed jobs of each account."""
    counted = (
        select(entity.account_id, func.count())
        .where(entity.status == "claimed")
        .group_by(entity.account_id)
    )
    found = session.execute(counted).all()
    session.rollback()
    return {account: number for account, number in found}  # noqa: C416 - mypy knows no tuple in a Row


def locked_keys(engine: Engine, queue: JobQueue[Any]) -> int:
    """Count the keys of the queue's jobs that somebody keeps locked."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            found = text(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            return int(connection.execute(found).scalar_one())
        limit = queue.plan.spec.key_limit
        assert limit is not None
        token = database_of(connection).serial_key(queue.mapping.table, limit.columns)
        free: Any = func.is_free_lock(token) if engine.dialect.name != "sqlite" else true()
        tokens = select(token, free).where(token.is_not(None)).distinct()
        return sum(not is_free for _, is_free in connection.execute(tokens))


# The processes


def consume(url: str, limit: int, seed: int, all_there: Barrier) -> None:
    """Claim and finish until nothing is left; roll some claims back, and fail some jobs.

    A job that fails goes back at once.
    """
    engine = make_engine(url)
    chance = random.Random(seed)

    def claim(session: Session) -> list[Mail]:
        jobs = BY_ACCOUNT.claim(session, owner=f"process-{os.getpid()}", limit=limit)
        note(session, *jobs, is_claim=True)
        if jobs and chance.random() < 0.1:
            session.rollback()
            return []
        return list(jobs)

    def finish(job: Mail, session: Session) -> None:
        note(session, job, is_claim=False)
        (BY_ACCOUNT.fail if chance.random() < 0.1 else BY_ACCOUNT.complete)(session, job)

    all_there.wait(60)
    while is_left(engine):
        for job in committed(engine, claim):
            committed(engine, partial(finish, job))
    engine.dispose()


def is_left(engine: Engine) -> bool:
    with Session(engine) as session:
        return session.scalar(select(Mail.id).where(Mail.status != "done").limit(1)) is not None


def note(session: Session, *jobs: Mail, is_claim: bool) -> None:
    for job in jobs:
        line = {"job": job.id, "process": os.getpid(), "is_claim": is_claim}
        session.execute(insert(Finished), line)


def run_consumers(engine: Engine, limit: int, number: int) -> list[Finished]:
    """Run consumers to their ends, and return what they noted."""
    url = engine.url.render_as_string(hide_password=False)
    all_there = FORKSERVER.Barrier(number)
    given = [(url, limit, n, all_there) for n in range(number)]
    run_processes(consume, [*given], seconds=800)
    with Session(engine) as session:
        return list(session.scalars(select(Finished).order_by(Finished.id)))
