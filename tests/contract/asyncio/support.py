"""Async engines for the tests, one for each driver, and an event loop for each test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tests.support import LOCK_WAIT


def _drivers(*drivers: str, engines: tuple[str, ...]) -> list[Any]:
    only_on = pytest.mark.only_on(*engines)
    return [pytest.param(driver, marks=only_on) for driver in drivers]


#: The async drivers, to parametrize `driver` with; each runs on its own databases only.
DRIVERS_OF_POSTGRESQL = _drivers("asyncpg", "psycopg", engines=("postgresql",))
DRIVERS_OF_INNODB = _drivers("aiomysql", "asyncmy", engines=("mysql", "mariadb"))
DRIVERS_OF_SQLITE = _drivers("aiosqlite", engines=("sqlite",))


def make_async_engine(
    url: URL, driver: str, *, lock_wait: int = LOCK_WAIT, **options: Any
) -> AsyncEngine:
    """Create an engine of an async driver for the database of a synchronous one.

    Its statements wait for locks, but not for long.
    """
    init = f"SET innodb_lock_wait_timeout={lock_wait}, lock_wait_timeout={lock_wait}"
    connect: dict[str, dict[str, Any]] = {
        "asyncpg": {"server_settings": {"lock_timeout": f"{lock_wait}s"}},
        "psycopg": {"options": f"-c lock_timeout={lock_wait}s"},
        "aiomysql": {"init_command": init},
        "asyncmy": {"init_command": init},
        "aiosqlite": {"timeout": lock_wait},
    }
    drivername = f"{url.get_backend_name()}+{driver}"
    return create_async_engine(
        url.set(drivername=drivername), connect_args=connect[driver], **options
    )


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, and dispose of its engines in there."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(_disposing(test(**fixtures), fixtures))
        assert [thread for thread in threading.enumerate() if "aiosqlite" in thread.name] == []

    return run


async def _disposing(test: Coroutine[Any, Any, None], fixtures: dict[str, Any]) -> None:
    try:
        await test
    finally:
        for engine in fixtures.values():
            if isinstance(engine, AsyncEngine):
                await engine.dispose()


def new_async_session(engine: AsyncEngine, **options: Any) -> AsyncSession:
    """Open a session as an application would: what was loaded stays after a commit."""
    return AsyncSession(engine, expire_on_commit=False, **options)
