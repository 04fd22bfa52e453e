"""A user's own module with queues that have handlers, one that has none, and an imported one."""

from __future__ import annotations

import logging
import time

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin
from sa_jobqueue.worker import job_context

from .films import workflow as films  # noqa: F401  # as users import what another module declares

log = logging.getLogger("bakery")


class Base(DeclarativeBase):
    """The base of the bakery's tables."""


class Loaf(JobMixin, RetryMixin, Base):
    """A loaf; a special one bakes until its baker is asked to stop, and so many seconds more."""

    __tablename__ = "loaf"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), default="bread")
    seconds: Mapped[float | None]


bread = JobQueue(Loaf, Loaf.kind == "bread")
cakes = JobQueue(Loaf, Loaf.kind == "cake")
ideas = JobQueue(Loaf, Loaf.kind == "idea")
same_bread = bread


@bread.handler
def bake(loaf: Loaf) -> None:
    """Bake a special loaf until we are asked to stop."""
    log.info("loaf %d is in the oven", loaf.id)
    if loaf.seconds is not None:
        while not job_context().asked_to_stop:
            time.sleep(0.02)
        log.info("the baker is asked to stop")
        time.sleep(loaf.seconds)


def light_the_fire() -> None:
    """Begin the work of a process."""
    log.info("the fire burns")


@cakes.handler
def bake_slowly(loaf: Loaf) -> None:
    """Do nothing, and succeed."""
