"""Workers that drain a queue, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import URL, Engine, event, select
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from sa_jobqueue.worker.hands import Hands
from tests.models import Base, Email, Task
from tests.support import make_engine

SOON = timedelta(milliseconds=20)


def work(
    engine: Engine | sessionmaker[Any],
    queue: JobQueue[Any],
    handler: Callable[..., Any],
    **options: object,
) -> None:
    """Drain a queue with a worker that pauses only briefly."""
    if queue.mapping.has("run_at"):
        options = {"backoff": lambda attempts: SOON, **options}
    options = {"drain": True, "poll": SOON, **options}
    Worker(engine, queue, handler, **options).run()  # type: ignore[arg-type]  # forwarded


def hands_of(worker: Worker[Any]) -> Hands[Any]:
    """The jobs in hand of a worker that runs."""
    assert worker._hands is not None
    return worker._hands


def states(session: Session) -> dict[str, tuple[str, int, str | None]]:
    found = session.scalars(select(Task))
    return {task.name: (task.status, task.attempts, task.last_error) for task in found}


def transient(alias: str) -> Exception:
    """A deadlock, or a busy database, as the driver reports it."""
    if alias == "postgresql":
        error: Exception = Exception("deadlock detected")
        error.pgcode = "40P01"  # type: ignore[attr-defined]  # as psycopg2 sets it
    elif alias == "sqlite":
        error = Exception("database is locked")
        error.sqlite_errorcode = 5  # type: ignore[attr-defined]  # as sqlite3 sets it
    else:
        error = Exception(1213, "Deadlock found")
    return error


def dates(session: Session) -> dict[int, datetime]:
    """Return when each email was claimed or last renewed."""
    session.rollback()
    found = session.execute(select(Email.id, Email.owner_date))
    now = {row.id: row.owner_date for row in found}
    session.rollback()  # its next read sees what is committed then
    return now


def owners(session: Session) -> list[str | None]:
    session.rollback()
    return list(session.scalars(select(Email.owner).order_by(Email.id)))


@contextmanager
def own_database(url: URL, **options: Any) -> Iterator[Engine]:
    """An engine with tables of its own, whose connections may be cut."""
    engine = make_engine(url, **options)
    Base.metadata.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def checkouts_counted(engine: Engine) -> Iterator[list[int]]:
    """Count how often the pool gives a connection."""
    count = [0]

    def note(*_: object) -> None:
        count[0] += 1

    event.listen(engine, "checkout", note)
    try:
        yield count
    finally:
        event.remove(engine, "checkout", note)
