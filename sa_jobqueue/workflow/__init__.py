"""Workflow: a job passes through several statuses, each step with its handler.

::

    workflow = Workflow(Video, VideoStatus, final=[VideoStatus.REJECTED])

    @workflow.step(
        VideoStatus.UPLOADED,
        during=VideoStatus.CHECKING,
        then=VideoStatus.CHECKED,
        branches=[VideoStatus.REJECTED],
    )
    def check(video: Video) -> VideoStatus | None:
        return None if playable(video) else VideoStatus.REJECTED

    Worker(engine, workflow).run()

Every step is a :class:`sa_jobqueue.JobQueue` over statuses of its own, with all that
belongs to one: owners, fences, leases, reaping. Its finish goes to the status of the
next step, where the job is unclaimed again, in one fenced UPDATE.

A job is in one status at a time: there are no parallel branches that join again.
"""

from ..errors import InvalidTransition, NotWaiting
from .graph import Arrow
from .history import Transition
from .step import Step
from .workflow import Workflow

__all__ = ["Arrow", "InvalidTransition", "NotWaiting", "Step", "Transition", "Workflow"]
