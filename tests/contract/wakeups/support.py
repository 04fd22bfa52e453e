"""Queues that notify, what fills them, and workers that would not look by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import URL, Engine, NullPool, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, RoundMixin, enqueue
from tests.contract.worker.driver import Workers
from tests.processes import FORKSERVER
from tests.support import heard, until, with_empty_tables


class WakeBase(DeclarativeBase):
    pass


class Parcel(JobMixin, RetryMixin, WakeBase):
    """A queue whose new jobs are notified of, and that has due times."""

    __tablename__ = "wake_parcel"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))


class Postcard(JobMixin, WakeBase):
    """A queue that does not notify."""

    __tablename__ = "wake_postcard"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))


class Reader(JobMixin, RoundMixin, WakeBase):
    """A queue with rounds."""

    __tablename__ = "wake_reader"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


class Hostile(JobMixin, WakeBase):
    """A table whose name is as long and as odd as PostgreSQL allows."""

    __tablename__ = 'wake "%s" ' + "ä" * 20
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


class Crate(JobMixin, RetryMixin, WakeBase):
    """A queue whose jobs of one ship are claimed one at a time."""

    __tablename__ = "wake_crate"
    __queue_args__ = {"notify": True, "per_key": ["ship"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    ship: Mapped[int | None]


class Pallet(JobMixin, WakeBase):
    """The same without due times: no watcher looks for its jobs where it is notified of them."""

    __tablename__ = "wake_pallet"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    ship: Mapped[int | None]


class Cargo(JobMixin, WakeBase):
    """Jobs of a workflow, which wait for a signal between its two steps."""

    __tablename__ = "wake_cargo"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "notify": True,
        "ready": ["cleared"],
        "during": ["loading"],
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    ship: Mapped[int | None]


SHIPPED = JobQueue(Crate, serial_by=Crate.ship)


def empty(engine: Engine) -> Engine:
    """Return the engine, its tables of this module made and empty."""
    WakeBase.metadata.create_all(engine)
    return with_empty_tables(engine, WakeBase.metadata)


def add_parcels(session: Session, *names: str) -> None:
    """Commit a parcel for each name."""
    enqueue(session, Parcel, [{"name": name} for name in names])
    session.commit()


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
