"""Workers that would not look by themselves for a minute, and a process that makes their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import heard
from tests.processes import FORKSERVER
from tests.support import until

MINUTE = timedelta(seconds=60)

#: How long a test waits for a wake-up, in seconds; far less than a worker that looks by itself.
SOON = 10


@contextmanager
def idle(workers: Workers, queue: Any, **options: Any) -> Iterator[None]:
    """Run a worker beside the test, which has found no job when the block begins."""
    turns = [time.monotonic()]
    options = {"poll": MINUTE, "reap_every": None, **options}
    with (
        heard(workers.engine, "commit", lambda connection: turns.append(time.monotonic())),
        workers.running(queue, **options),
    ):
        until(lambda: len(turns) > 1 and time.monotonic() > turns[-1] + 0.3)
        yield


def until_handled(workers: Workers, *names: str) -> None:
    """Wait until these jobs have been handled, in this order, and no others."""
    until(lambda: workers.handled == list(names), SOON)


@contextmanager
def elsewhere(url: URL, entity: type[Any]) -> Iterator[Callable[..., None]]:
    """Give a function that commits a job in another process, due in so many seconds."""
    written = url.render_as_string(hide_password=False)
    with FORKSERVER.Pool(1) as pool:
        yield lambda name, seconds=0: pool.apply(_add, (written, entity, name, seconds))


def _add(url: str, entity: type[Any], name: str, seconds: float) -> None:
    add_later(create_engine(url, poolclass=NullPool), entity, name, seconds)


def add_later(engine: Engine, entity: type[Any], name: str, seconds: float = 0) -> None:
    """Commit a job that is due in so many seconds."""
    row: dict[str, Any] = {"name": name}
    if seconds:
        row["run_at"] = datetime.now(UTC) + timedelta(seconds=seconds)
    with Session(engine) as session, session.begin():
        enqueue(session, entity, [row])
