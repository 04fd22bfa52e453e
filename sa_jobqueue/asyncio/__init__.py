"""The same verbs, queues and worker for an AsyncSession and an AsyncEngine.

::

    async with AsyncSession(engine, expire_on_commit=False) as session:
        emails = await claim(session, Email, owner="mailer-1", limit=100)
        await session.commit()
        for email in emails:
            await send(email)
        await complete(session, emails)
        await session.commit()

Each verb is that of :mod:`sa_jobqueue`, run by ``AsyncSession.run_sync``. Import from
:mod:`sa_jobqueue` what takes no session, such as ``fence_of``, and the errors. See docs/asyncio.md.

======================  =====================================================
``verbs``               the verbs as functions, and AsyncJobQueue
``worker``              AsyncWorker
``calls``               how an AsyncWorker calls handlers
``workflow``            AsyncWorkflow
``control``             the verbs of control; import them from there
``schedules``           AsyncSchedules; import it from there
``tasks``               the Runtime of a worker in an event loop
``listening``           a connection that listens, for its wake-ups
``sessions``            an AsyncSession, and the Session behind it
======================  =====================================================
"""

from . import verbs
from .verbs import *  # noqa: F403  # its names are listed once, in verbs.__all__
from .worker import AsyncWorker
from .workflow import AsyncWorkflow

__all__ = ["AsyncWorker", "AsyncWorkflow"]
__all__ += verbs.__all__
