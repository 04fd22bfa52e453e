"""A user's own module with a workflow."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, RetryMixin
from sa_jobqueue.workflow import Workflow


class Base(DeclarativeBase):
    """The base of the studio's tables."""


class Film(JobMixin, RetryMixin, Base):
    """A film, which is cut and then shown."""

    __tablename__ = "film"
    __queue_args__ = {"ready": ["cut"], "during": ["showing"], "keep": False}  # noqa: RUF012

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


workflow = Workflow(Film)


@workflow.step("unclaimed", during="claimed", then="cut")
def cut(film: Film) -> None:
    """Fail the first time if the title asks for it."""
    if film.title == "hard" and film.attempts == 1:
        raise ValueError("the tape is torn")


@workflow.step("cut", during="showing", then="done")
def show(film: Film) -> None:
    """Do nothing, and succeed."""
