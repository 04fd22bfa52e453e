"""A worker that would not look by itself for a minute, and a process that makes jobs for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, enqueue
from sa_jobqueue.worker import Worker
from tests.processes import FORKSERVER
from tests.support import until

MINUTE = timedelta(seconds=60)

#: How long a test waits for a wake-up, in seconds; far less than a worker that looks by itself.
SOON = 10


class Handled:
    """The names of the jobs that were handled, in their order."""

    def __init__(self) -> None:
        self._names: queue.Queue[str] = queue.Queue()

    def __call__(self, job: Any) -> None:
        self._names.put(job.name)

    def next(self) -> str:
        """Wait for the next one.

        Raises:
            queue.Empty: none came in time.
        """
        return self._names.get(timeout=SOON)


@contextmanager
def working(
    engine: Engine,
    entity: type[Any] | JobQueue[Any],
    handler: Callable[[Any], None],
    *,
    watched: bool = True,
    **options: Any,
) -> Iterator[Worker[Any]]:
    """Run a worker in a thread, idle and watched when the block begins."""
    options = {"poll": MINUTE, "reap_every": None, **options}
    queue = entity if isinstance(entity, JobQueue) else JobQueue(entity)
    worker = Worker(engine, queue, handler, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: is_watched(worker) or not watched, SOON)
        yield worker
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()


def is_watched(worker: Worker[Any]) -> bool:
    """Tell whether a worker was idle, and its watcher is connected."""
    return worker._woken_by is not None and worker._woken_by.connected


def claims_for_nothing(worker: Worker[Any]) -> int:
    """Count the claims in a row that a ring had the worker make, and that found nothing."""
    return 0 if worker._woken_by is None else worker._woken_by._alarm.for_nothing


@contextmanager
def elsewhere(url: URL, entity: type[Any]) -> Iterator[Callable[..., None]]:
    """Give a function that commits a job in another process, due in so many seconds."""
    ours, theirs = FORKSERVER.Pipe()
    process = FORKSERVER.Process(
        target=_serve, args=(theirs, url.render_as_string(hide_password=False), entity)
    )
    process.start()

    def add(name: str, seconds: float = 0) -> None:
        ours.send((name, seconds))
        assert ours.poll(30)
        assert ours.recv() == name

    try:
        yield add
    finally:
        ours.send(None)
        process.join(30)


def _serve(connection: Any, url: str, entity: type[Any]) -> None:
    engine = create_engine(url, poolclass=NullPool)
    while (asked := connection.recv()) is not None:
        name, seconds = asked
        with Session(engine) as session:
            add_later(session, entity, name, seconds)
        connection.send(name)


def add_later(session: Session, entity: type[Any], name: str, seconds: float = 0) -> None:
    """Commit a job that is due in so many seconds."""
    row: dict[str, Any] = {"name": name}
    if seconds:
        row["run_at"] = datetime.now(UTC) + timedelta(seconds=seconds)
    enqueue(session, entity, [row])
    session.commit()
