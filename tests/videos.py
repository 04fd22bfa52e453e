"""A workflow as users write it: videos are checked, rendered elsewhere, and published."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.workflow import Transition, Workflow
from tests.models import Base, add


class S(StrEnum):
    """The statuses of a video."""

    UPLOADED = "uploaded"
    CHECKING = "checking"
    CHECKED = "checked"
    SENDING = "sending"
    AT_FARM = "at farm"
    RENDERED = "rendered"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    REJECTED = "rejected"


class Video(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A video that passes through the workflow."""

    __tablename__ = "video"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": S.UPLOADED, "claimed": S.CHECKING, "done": S.PUBLISHED},
        "ready": [S.CHECKED, S.RENDERED],
        "during": [S.SENDING, S.PUBLISHING],
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


class VideoLog(Base):
    """One row for each transition of a video."""

    __tablename__ = "video_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    video_id: Mapped[int]
    before: Mapped[str] = mapped_column(String(16))
    after: Mapped[str] = mapped_column(String(16))
    verb: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str | None] = mapped_column(String(64))


Handler = Callable[[Video], Any]


def nothing(video: Video) -> None:
    """Accept every video."""


def videos(
    check: Handler = nothing, send: Handler = nothing, publish: Handler = nothing, **queue: Any
) -> Workflow[Video]:
    """Make the workflow with these handlers; every transition is logged."""
    workflow = Workflow(Video, S, final=[S.REJECTED])
    workflow.step(S.UPLOADED, during=S.CHECKING, then=S.CHECKED, branches=[S.REJECTED], **queue)(
        named("check", check)
    )
    workflow.step(S.CHECKED, during=S.SENDING, then=S.AT_FARM, **queue)(named("send", send))
    workflow.waiting(S.AT_FARM, signals=[S.RENDERED, S.REJECTED])
    workflow.step(S.RENDERED, during=S.PUBLISHING, then=S.PUBLISHED, branches=[S.CHECKED], **queue)(
        named("publish", publish)
    )
    workflow.on_transition(log)
    return workflow


def named(name: str, handler: Handler) -> Handler:
    """Give a handler the name of its step; several steps may share a handler."""

    def handle(video: Video) -> Any:
        return handler(video)

    handle.__name__ = name
    return handle


def log(session: Session, transition: Transition) -> None:
    (video_id,) = transition.identity
    session.add(
        VideoLog(
            video_id=video_id,
            before=transition.before,
            after=transition.after,
            verb=transition.verb,
            owner=transition.owner,
        )
    )


def add_videos(session: Session, *titles: str, **columns: object) -> list[Video]:
    """Commit a video for each title, in this order."""
    return add(session, [Video(title=title, **columns) for title in titles])
