"""The same verbs, queues and worker for an AsyncSession and an AsyncEngine.

::

    async with AsyncSession(engine, expire_on_commit=False) as session:
        emails = await claim(session, Email, owner="mailer-1", limit=100)
        await session.commit()
        for email in emails:
            await send(email)
        await complete(session, emails)
        await session.commit()

Each verb is that of :mod:`sa_jobqueue`, run by ``AsyncSession.run_sync``. All else that takes a
session, such as workflows, schedules and control, is awaited by the session itself:
``await session.run_sync(workflow.signal, video, "rendered")``. Import from :mod:`sa_jobqueue` what
takes no session, such as ``fence_of``, and the errors. See docs/asyncio.md.

======================  =======================================================
``verbs``               the verbs as functions, and AsyncJobQueue
``worker``              AsyncWorker, its tasks, and how it calls handlers
======================  =======================================================
"""

from . import verbs
from .verbs import *  # noqa: F403  # its names are listed once, in verbs.__all__
from .waiting import wait
from .worker import AsyncWorker

__all__ = ["AsyncWorker", "wait"]
__all__ += verbs.__all__
