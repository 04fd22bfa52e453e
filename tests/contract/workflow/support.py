"""Videos on their way through a workflow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import Workflow
from tests.videos import Video, VideoLog

SOON = timedelta(milliseconds=20)


def work(engine: Engine, steps: Any, **options: Any) -> None:
    """Drain steps with a worker that pauses only briefly."""
    options = {"drain": True, "poll": SOON, "backoff": lambda attempts: SOON, **options}
    Worker(engine, steps, **options).run()


def statuses(session: Session) -> dict[str, str]:
    session.rollback()
    found = session.execute(select(Video.title, Video.status))
    return {row.title: row.status for row in found}


def logged(session: Session, *columns: str) -> list[Any]:
    columns = columns or ("before", "after", "verb")
    found = session.execute(
        select(*(getattr(VideoLog, name) for name in columns)).order_by(VideoLog.id)
    )
    return [tuple(row) for row in found]


def step_of(workflow: Workflow[Video], name: str) -> Any:
    (found,) = [step for step in workflow if step.name == name]
    return found
