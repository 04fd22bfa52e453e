"""Workflow: a job goes through several steps, each with its statuses and its handler.

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

Every step has a :class:`sa_jobqueue.JobQueue` over statuses of its own, with owners, fences,
leases and reaping. To complete a step is one fenced UPDATE: it gives the job the status in which
the next step claims it.

A job has one status at a time: there are no parallel branches that join again.
"""

from ..errors import InvalidTransition, NotWaiting
from .workflow import Arrow, Step, Transition, Workflow

__all__ = ["Arrow", "InvalidTransition", "NotWaiting", "Step", "Transition", "Workflow"]
