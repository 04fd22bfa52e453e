"""A Worker or an AsyncWorker, as the handlers need it, on the database that the user names."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.orm import sessionmaker

from ..dialects import database_of
from ..process.name import function_name
from ..worker import Lane, Worker, WorkerOptions
from .engine import (
    chosen_target,
    driver_errors,
    make_engine,
    prepare,
    require_table,
)
from .targets import load_target

if TYPE_CHECKING:
    from ..asyncio import AsyncWorker

ASYNC_DRIVERS = ("postgresql+asyncpg://", "mysql+aiomysql://", "sqlite+aiosqlite:///FILE")

#: What opens the connections or the sessions of a worker: an Engine or a sessionmaker, or those of
#: asyncio.
Source: TypeAlias = Any
AnyWorker: TypeAlias = "Worker[Any] | AsyncWorker[Any]"

#: Stops a worker within its ``with`` block, also while it waits for its database.
Stopping: TypeAlias = Callable[[AnyWorker], AbstractContextManager[object]]

#: The worker runs within its ``with`` block, when the database has proved to be right.
Running: TypeAlias = Callable[[AnyWorker], AbstractContextManager[object]]


class UnjoinedThreads(ThreadPoolExecutor):
    """The threads of asyncio.to_thread(): the end of the event loop does not wait for them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end that have nothing to do."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


@dataclass(frozen=True)
class WorkerRun:
    """A run of a worker.

    Attributes:
        url: as the user wrote it; None goes by --engine.
        stopping: within this context manager the worker runs.
    """

    lanes: Sequence[Lane[Any]]
    url: str | None
    options: WorkerOptions
    stopping: Stopping
    running: Running

    def run(self) -> bool:
        """Run the worker until it ends; tell whether it was stopped.

        Raises:
            ClickException: the handlers do not fit the database's driver, or a table is missing.
            SQLAlchemyError: the server refuses the login, or was away for five minutes.
        """
        with driver_errors(self.url):
            source = self._source()
        if is_async(source):
            run = _awaited().run_async(
                source,
                self.lanes,
                self.options,
                url=self.url,
                check=self._check,
                stopping=self.stopping,
                running=self.running,
            )
            with asyncio.Runner() as runner:
                runner.get_loop().set_default_executor(
                    UnjoinedThreads(thread_name_prefix="asyncio")
                )
                return bool(runner.run(run))
        worker = Worker(source, self.lanes, **self.options)
        click.get_current_context().call_on_close(worker.engine.dispose)
        prepare(worker.engine)
        with self.stopping(worker):
            with driver_errors(self.url):
                is_ready = worker.check_database(self._check)
            if is_ready:
                with self.running(worker):
                    worker.run()
        return worker.stopping

    def _check(self, connection: Connection) -> None:
        """Refuse servers that are too old, and databases without our tables."""
        database_of(connection)
        for table in {lane.queue.mapping.table for lane in self.lanes}:
            require_table(connection, table)

    # -- what opens connections -----------------------------------------

    def _source(self) -> Source:
        target = chosen_target(self.url)
        awaited = [lane for lane in self.lanes if lane.is_async]
        plain = [lane for lane in self.lanes if not lane.is_async]
        if awaited and plain:
            raise click.UsageError(
                f"{handler_name(awaited[0])} is async def, and {handler_name(plain[0])} is not. "
                "One worker cannot run both: run two commands, one for each kind of handler"
            )
        if target is None:
            return source_of_url(str(self.url), self.lanes[0])
        return source_of_application(target, self.lanes[0])


def source_of_url(url: str, lane: Lane[Any]) -> Source:
    """Make an engine whose driver suits a handler.

    Raises:
        ClickException: it names a URL that suits.
    """
    dialect = make_url(url).get_dialect()
    if lane.is_async:
        if not dialect.get_async_dialect_cls(make_url(url)).is_async:
            raise click.ClickException(
                f"{handler_name(lane)} is async def, and {make_url(url).drivername} is not a "
                f"driver for asyncio: name one in the URL, as in {', '.join(ASYNC_DRIVERS)}"
            )
        return _awaited().async_engine(url)
    if dialect.is_async:
        raise click.ClickException(plain_on_async(lane, make_url(url).drivername, "--url"))
    return make_engine(url)


def source_of_application(target: str, lane: Lane[Any]) -> Source:
    """Return the application's own engine or sessionmaker.

    Raises:
        ClickException: it is none, or does not suit a handler.
    """
    found = load_target(target)
    if not isinstance(found, Engine | sessionmaker) and not is_async(found):
        raise click.ClickException(
            f"{target} is no Engine, sessionmaker, AsyncEngine or async_sessionmaker, but {found!r}"
        )
    if lane.is_async and not is_async(found):
        raise click.ClickException(
            f"{handler_name(lane)} is async def, and {target} is not for asyncio: name an "
            f"AsyncEngine or an async_sessionmaker, not {found!r}"
        )
    if is_async(found) and not lane.is_async:
        raise click.ClickException(plain_on_async(lane, target, "--engine"))
    return found


def is_async(source: Any) -> bool:
    """Tell whether it is an AsyncEngine or an async_sessionmaker; without greenlet nothing is."""
    loaded = sys.modules.get("sqlalchemy.ext.asyncio")
    return loaded is not None and isinstance(source, loaded.AsyncEngine | loaded.async_sessionmaker)


def _awaited() -> Any:
    """Import what runs an AsyncWorker.

    Raises:
        ClickException: greenlet is not installed.
    """
    try:
        return importlib.import_module(".run_async", __package__)
    except ImportError as error:
        needed = 'async def handlers need greenlet: pip install "sa_jobqueue[asyncio]"'
        raise click.ClickException(needed) from error


def plain_on_async(lane: Lane[Any], source: str, option: str) -> str:
    """Say that a plain handler is not for asyncio, and the ways out."""
    return (
        f"{source} is for asyncio, and {handler_name(lane)} is a plain function: make it async "
        f"def, or name a synchronous driver or engine with {option}"
    )


def handler_name(lane: Lane[Any]) -> str:
    """Return the name of a handler, as its user wrote it."""
    return function_name(lane.handler)
