"""Runs workers of either kind, with the same handlers: a Worker, or an AsyncWorker.

::

    def test_a_handler_may_cancel_its_job(workers: Workers) -> None:
        workers.add("a")
        workers.drain(Task, lambda task: Cancel("void"))
        assert workers.rows() == {"a": ("cancelled", 1, "void")}

Handlers are plain functions. An AsyncWorker awaits them in threads, or, if they are transactional,
in the greenlet of their session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any

from sqlalchemy import URL, Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.support import make_async_engine
from tests.models import Task
from tests.running import ASYNC_DRIVERS, beside, in_thread
from tests.support import make_engine

SOON = timedelta(milliseconds=20)

KINDS = ("threads", "asyncio")

#: What became of a job: status, attempts and last_error.
Row = tuple[str, int, str | None]


class Workers:
    """Workers of one kind, and what their handlers have handled.

    Args:
        kind: "threads", "asyncio", or the name of an async driver.
        plain: an engine of the test's own, whose tables are empty.

    Attributes:
        engine: that of the workers; of an AsyncEngine it is the synchronous one within.
        handled: the names of the jobs that were handled, in this order.
        worker: the one that was made last.
    """

    def __init__(self, kind: str, plain: Engine) -> None:
        self.kind = kind
        self._made: list[Engine] = []
        self.plain = plain
        self.engine = self.engine_for(plain.url) if self.awaits else plain
        self.handled: list[str] = []
        self.worker: Any = None

    @property
    def awaits(self) -> bool:
        """Whether these are AsyncWorkers."""
        return self.kind != "threads"

    def engine_for(self, url: URL, **options: Any) -> Engine:
        """Create an engine for workers of this kind."""
        if not self.awaits:
            return make_engine(url, **options)
        driver = ASYNC_DRIVERS[url.get_backend_name()] if self.kind == "asyncio" else self.kind
        self._made.append(make_async_engine(url, driver, **options).sync_engine)
        return self._made[-1]

    def sessions(self, kind: type[Session] = Session, **options: Any) -> Any:
        """Return what makes an application's sessions on the engine."""
        if not self.awaits:
            return sessionmaker(self.engine, class_=kind, **options)
        return async_sessionmaker(AsyncEngine(self.engine), sync_session_class=kind, **options)

    # -- jobs -----------------------------------------------------------

    def add(self, *names: str, entity: Any = Task, **columns: Any) -> list[int]:
        """Commit a job for each name, in this order; return their keys."""
        with Session(self.plain) as session, session.begin():
            jobs = [entity(name=name, **columns) for name in names]
            for job in jobs:
                session.add(job)
                session.flush()
            return [job.id for job in jobs]

    def rows(self, entity: Any = Task) -> dict[str, Row]:
        """Return what became of each job, by its name, in the order of their keys."""
        query = select(entity.name, entity.status, entity.attempts, entity.last_error)
        query = query.order_by(entity.id)
        with self.plain.connect() as connection:
            return {row[0]: tuple(row[1:]) for row in connection.execute(query)}

    def statuses(self, entity: Any = Task) -> dict[str, str]:
        """Return the status of each job, by its name."""
        return {name: row[0] for name, row in self.rows(entity).items()}

    def priorities(self) -> dict[str, int]:
        """Return the priority of each task, by its name: most handlers write there."""
        with self.plain.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(select(Task.name, Task.priority))}

    def dates(self, entity: Any = Task) -> dict[str, datetime]:
        """Return when each job was claimed or last renewed, by its name."""
        with self.plain.connect() as connection:
            found = connection.execute(select(entity.name, entity.owner_date))
            return {row[0]: row[1] for row in found}

    def renewed(self, before: dict[str, datetime], entity: Any = Task) -> str:
        """Return the names of the jobs whose claims were renewed since, as one text."""
        dates = self.dates(entity).items()
        return "".join(sorted(name for name, date in dates if date != before[name]))

    def execute(self, statement: Any) -> None:
        """Commit a statement from outside of the worker."""
        with self.plain.begin() as connection:
            connection.execute(statement)

    def note(self, job: Any) -> None:
        """Handle a job: note its name."""
        self.handled.append(job.name)

    # -- workers --------------------------------------------------------

    def queue(
        self,
        entity: Any,
        handler: Callable[..., Any] | None = None,
        *criteria: Any,
        transactional: bool = False,
        timeout: timedelta | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> JobQueue[Any]:
        """Make a queue with a handler, by default :meth:`note`; its retries are due soon."""
        if hasattr(entity, "run_at"):
            options = {"backoff": lambda attempts: SOON, **options}
        queue: JobQueue[Any] = JobQueue(entity, *criteria, **options)
        self.declare(queue, handler, transactional=transactional, timeout=timeout, batch=batch)
        return queue

    def declare(self, queue: Any, given: Callable[..., Any] | None = None, **options: Any) -> None:
        """Give a queue its handler, awaited if need be."""
        handler: Any = self.note if given is None else given
        if self.awaits and not is_awaited(handler):
            handler = in_greenlet(handler) if options.get("transactional") else in_thread(handler)
        queue.handler(**options)(handler)

    def make(self, queues: Any, *, bind: Any = None, **options: Any) -> Any:
        """Make a worker of queues, or of mapped classes, which does not wait for long."""
        bind = self.engine if bind is None else bind
        if isinstance(queues, type):
            queues = self.queue(queues)
        options = {"poll": SOON, **options}
        if self.awaits:
            bind = awaited_bind(bind)
            self.worker = AsyncWorker(bind, queues, **options)
        else:
            self.worker = Worker(bind, queues, **options)
        return self.worker

    def run(self, worker: Any) -> None:
        """Run a worker in this thread until it ends."""
        if self.awaits:
            asyncio.run(run_and_dispose(worker, *self._made))
        else:
            worker.run()

    def drain(self, queues: Any, handler: Callable[..., Any] | None = None, **options: Any) -> None:
        """Run a worker until its queues are empty."""
        if handler is not None:
            queues = self.queue(queues, handler)
        self.run(self.make(queues, **{"drain": True, **options}))

    @contextmanager
    def running(self, queues: Any, **options: Any) -> Iterator[Any]:
        """Run a worker beside the test, until the block ends."""
        worker = self.make(queues, **options)
        with beside(worker, lambda: self.run(worker)):
            yield worker


def is_awaited(handler: Any) -> bool:
    """Tell whether a handler is ``async def``, or an object that is called so."""
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


async def run_and_dispose(worker: AsyncWorker[Any], *engines: Engine) -> None:
    """Run a worker in an event loop of its own, in which no engine keeps a connection."""
    try:
        await worker.run()
    finally:
        own = [worker.engine] if isinstance(worker.engine, AsyncEngine) else []
        for engine in (*own, *map(AsyncEngine, engines)):
            await engine.dispose()


def awaited_bind(bind: Any) -> Any:
    """Return what an AsyncWorker takes in place of an Engine, a mapping, or a function of one."""
    if isinstance(bind, dict):
        return {name: awaited_bind(engine) for name, engine in bind.items()}
    if isinstance(bind, FunctionType):
        return lambda: awaited_bind(bind())
    return AsyncEngine(bind) if isinstance(bind, Engine) else bind


def in_greenlet(handler: Callable[[Session, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an awaited transactional handler that does the work in its session."""

    async def handle(session: Any, job: Any) -> Any:
        return await session.run_sync(handler, job)

    return handle
