"""A Workflow whose verbs are awaited: it wraps the Workflow, which is declared once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

from ..verbs.reap import Reaped
from ..workflow import Workflow
from .sessions import AnyAsyncSession, async_session_of

T = TypeVar("T")


class AsyncWorkflow(Generic[T]):
    """A Workflow for an AsyncSession; an AsyncWorker takes the Workflow itself.

    Args:
        workflow: a Workflow, also one that is in use elsewhere.

    Attributes:
        sync_workflow: the Workflow.
    """

    def __init__(self, workflow: Workflow[T]) -> None:
        self.sync_workflow = workflow

    def __repr__(self) -> str:
        return f"<AsyncWorkflow of {self.sync_workflow!r}>"

    async def signal(self, session: AnyAsyncSession, job: Any, status: str) -> None:
        """Move a job that waits for a signal; see :meth:`sa_jobqueue.workflow.Workflow.signal`."""
        await async_session_of(session).run_sync(self.sync_workflow.signal, job, status)

    async def cancel(self, session: AnyAsyncSession, jobs: Any) -> list[T]:
        """Cancel unclaimed jobs; see :meth:`sa_jobqueue.workflow.Workflow.cancel`."""
        return await async_session_of(session).run_sync(self.sync_workflow.cancel, jobs)

    async def retry(
        self, session: AnyAsyncSession, jobs: Any, status: str | None = None
    ) -> list[T]:
        """Take ended jobs to a step again; see :meth:`sa_jobqueue.workflow.Workflow.retry`."""
        return await async_session_of(session).run_sync(self.sync_workflow.retry, jobs, status)

    async def reap(
        self,
        session: AnyAsyncSession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Reap claims of every step; see :meth:`sa_jobqueue.workflow.Workflow.reap`."""
        return await async_session_of(session).run_sync(
            self.sync_workflow.reap, lease=lease, max_runtime=max_runtime, limit=limit
        )
