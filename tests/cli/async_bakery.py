"""A user's own module with handlers that are awaited."""

from __future__ import annotations

import asyncio
import time

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.worker import job_context

from .bakery import Loaf, log

bread = JobQueue(Loaf, Loaf.kind == "bread")
awaited_bread = AsyncJobQueue(bread)
cakes = JobQueue(Loaf, Loaf.kind == "cake")
pies = JobQueue(Loaf, Loaf.kind == "pie")


@bread.handler
async def bake(loaf: Loaf) -> None:
    """Bake a special loaf until we are asked to stop."""
    log.info("loaf %d is in the oven", loaf.id)
    if loaf.seconds is not None:
        while not job_context().asked_to_stop:
            await asyncio.sleep(0.02)
        await asyncio.sleep(loaf.seconds)


@pies.handler
async def bake_in_a_thread(loaf: Loaf) -> None:
    """Bake where nobody can stop it."""
    log.info("loaf %d is in the oven", loaf.id)
    await asyncio.to_thread(time.sleep, loaf.seconds or 0)


@cakes.handler(transactional=True)
async def bake_and_note(session: AsyncSession, loaf: Loaf) -> None:
    """Add an idea to each cake."""
    session.add(Loaf(kind="idea"))
