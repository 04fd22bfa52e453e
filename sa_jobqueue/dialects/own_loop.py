"""A connection of an async driver that plain threads use: it lives in an event loop of its own.

So a lock is kept alive also while the application's event loop is busy with something else.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from sqlalchemy import Engine

R = TypeVar("R")


class Calls(Protocol):
    """Calls what uses connections of one engine, by one thread at a time."""

    def run(self, work: Callable[[], R]) -> R: ...
    def close(self) -> None: ...


def calls_for(engine: Engine) -> Calls:
    """Return how to call, from any thread, what uses connections of this engine."""
    return _InOwnLoop() if engine.dialect.is_async else _AtOnce()


def call_for(engine: Engine, work: Callable[[], R]) -> R:
    """Call something that opens a connection of this engine, and closes it again."""
    calls = calls_for(engine)
    try:
        return calls.run(work)
    finally:
        calls.close()


class _AtOnce:
    """A synchronous driver may be called anywhere."""

    def run(self, work: Callable[[], R]) -> R:
        return work()

    def close(self) -> None:
        pass


class _InOwnLoop:
    """An event loop that runs only while something is called."""

    def __init__(self) -> None:
        import asyncio

        # Not epoll, whose state a forked child would share with us. Nor an application's uvloop.
        poll: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)
        self._loop = asyncio.SelectorEventLoop(poll())

    def run(self, work: Callable[[], R]) -> R:
        from sqlalchemy.util import greenlet_spawn

        if _a_loop_runs_here():  # which cannot run another one inside
            with ThreadPoolExecutor(1) as apart:
                return apart.submit(self.run, work).result()
        return self._loop.run_until_complete(greenlet_spawn(work))

    def close(self) -> None:
        if not self._loop.is_running():
            self._loop.close()


def _a_loop_runs_here() -> bool:
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True
