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

======================  =====================================================
``workflow``            Workflow: declares steps, sends signals
``graph``               which statuses there are, and which change is allowed
``step``                Step: a handler with its statuses
``step_queue``          the verbs of a step's queue
``listeners``           what the events of its verbs say, as transitions
``diagram``             the graph in Mermaid's language
======================  =====================================================
"""

from ..errors import InvalidTransition, NotWaiting
from .graph import Arrow
from .listeners import Transition
from .step import Step
from .workflow import Workflow

__all__ = ["Arrow", "InvalidTransition", "NotWaiting", "Step", "Transition", "Workflow"]
