"""A user's own workflow whose jobs wait for signals."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.workflow import Workflow


class Base(DeclarativeBase):
    """The base of the reels."""


class Reel(JobMixin, Base):
    """A reel, which may be lent, or get lost."""

    __tablename__ = "reel"
    # With "lent", the claim index finds what is lent on PostgreSQL, too.
    __queue_args__ = {"ready": ["back", "lent"], "during": ["checked"]}  # noqa: RUF012

    id: Mapped[int] = mapped_column(primary_key=True)


workflow = Workflow(Reel)
workflow.waiting("lent", signals=["back"])
workflow.waiting("lost", signals=["back"])


@workflow.step("unclaimed", during="claimed", then="lent", branches=["lost"])
def lend(reel: Reel) -> None: ...


@workflow.step("back", during="checked", then="done")
def check(reel: Reel) -> None: ...
