"""Workers that run beside a test, in threads: a Worker, or an AsyncWorker in an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import sessionmaker

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.support import make_async_engine

SOON = timedelta(milliseconds=20)

#: Plain functions that handle jobs, by class, or by queue.
Handlers = Mapping[Any, Callable[[Any], Any]]

ASYNC_DRIVERS = {
    "postgresql": "asyncpg",
    "mysql": "aiomysql",
    "mariadb": "asyncmy",
    "sqlite": "aiosqlite",
}

#: Runs a worker beside a test, given the handlers.
Run = Callable[..., AbstractContextManager[Any]]


def runs(kind: str, engine: Engine) -> Run:
    """Return what runs workers of a kind: "Worker" or "AsyncWorker"."""
    if kind == "Worker":
        return partial(running, engine)
    alias = engine.url.get_backend_name()
    return partial(running_async, make_async_engine(engine.url, ASYNC_DRIVERS[alias]))


@contextmanager
def running(
    engine: Engine | sessionmaker[Any], handlers: Handlers, **options: Any
) -> Iterator[Worker[Any]]:
    """Run a worker until the block ends."""
    worker: Worker[Any] = Worker(engine, _queues(handlers), **{"poll": SOON, **options})
    with beside(worker, worker.run):
        yield worker


@contextmanager
def running_async(
    engine: AsyncEngine, handlers: Handlers, **options: Any
) -> Iterator[AsyncWorker[Any]]:
    """Run an AsyncWorker until the block ends; its handlers wait for threads."""
    awaited = {entity: in_thread(handler) for entity, handler in handlers.items()}
    worker: AsyncWorker[Any] = AsyncWorker(engine, _queues(awaited), **{"poll": SOON, **options})

    async def run() -> None:
        try:
            await worker.run()
        finally:
            await engine.dispose()

    with beside(worker, lambda: asyncio.run(run())):
        yield worker


def _queues(handlers: Handlers) -> list[JobQueue[Any]]:
    queues = []
    for given, handler in handlers.items():
        queue = given if isinstance(given, JobQueue) else JobQueue(given)
        queue.handler(handler)
        queues.append(queue)
    return queues


def in_thread(handler: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """Return an awaited handler that lets a thread do the work."""

    async def handle(job: Any) -> Any:
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(None, run, handler, job)

    return handle


@contextmanager
def beside(worker: Worker[Any] | AsyncWorker[Any], run: Callable[[], None]) -> Iterator[None]:
    """Run a worker in a thread until the block ends."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert errors == []
