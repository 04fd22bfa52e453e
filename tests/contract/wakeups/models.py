"""Queues that notify, and what fills them."""

from __future__ import annotations

from sqlalchemy import Engine, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, RoundMixin, enqueue
from tests.support import with_empty_tables


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
