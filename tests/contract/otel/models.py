"""A queue whose jobs keep the trace of their enqueuer."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, RetryMixin
from sa_jobqueue.otel import TraceMixin


class Base(DeclarativeBase):
    pass


class Telegram(JobMixin, RetryMixin, TraceMixin, Base):
    """A job with attempts."""

    __tablename__ = "telegram"
    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(20), default="stop")
