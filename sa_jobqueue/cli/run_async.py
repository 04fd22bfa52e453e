"""An AsyncWorker and its engine; imported only for handlers that are awaited: it needs greenlet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from ..asyncio import AsyncWorker
from ..worker import Lane, WorkerOptions
from .engine import driver_errors, prepare, with_our_settings


def async_engine(url: str) -> AsyncEngine:
    """Make an AsyncEngine."""
    return AsyncEngine(with_our_settings(create_async_engine(url).sync_engine))


async def run_async(
    source: AsyncEngine | async_sessionmaker[Any],
    lanes: Sequence[Lane[Any]],
    options: WorkerOptions,
    *,
    url: str | None,
    check: Callable[[Connection], None],
    stopping: Callable[[AsyncWorker[Any]], AbstractContextManager[object]],
    running: Callable[[AsyncWorker[Any]], AbstractContextManager[object]],
) -> bool:
    """Run an AsyncWorker until it ends; tell whether it was stopped.

    Args:
        check: refuses a database that the worker cannot use.
    """
    worker = AsyncWorker(source, lanes, **options)
    prepare(worker.engine.sync_engine)
    try:
        with stopping(worker):
            with driver_errors(url):
                is_ready = await worker.check_database(check)
            if is_ready:
                with running(worker):
                    await worker.run()
    finally:
        await worker.engine.dispose()
    return worker.stopping
