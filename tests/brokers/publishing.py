"""A worker of the example's outbox, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from importlib import import_module
from inspect import iscoroutinefunction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import event, make_url

from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.support import make_async_engine
from tests.support import make_engine

EXAMPLES = Path(__file__).parents[2] / "examples"

OPTIONS: dict[str, Any] = {"concurrency": 4, "reap_every": timedelta(seconds=1)}


def example(name: str) -> Any:
    """Import a module of the example."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return import_module(f"outbox.{name}")


def publish(
    url: str, publisher: str, variable: str, broker: str, dies: bool, _: Connection
) -> None:
    """Publish messages until the process is killed.

    Args:
        publisher: a module of the example.
        variable: names the broker's URL in the environment.
        dies: by SIGKILL, when the first rows would be deleted, whose messages are published.
    """
    os.environ[variable] = broker
    module = example(publisher)
    awaits = iscoroutinefunction(module.publish)
    engine: Any = make_async_engine(make_url(url), "asyncpg") if awaits else make_engine(url)
    if dies:
        event.listen(engine.sync_engine if awaits else engine, "before_cursor_execute", die)
    if awaits:
        asyncio.run(AsyncWorker(engine, module.messages, **OPTIONS).run())
    else:
        Worker(engine, module.messages, **OPTIONS).run()


def die(_: Any, __: Any, statement: str, *___: Any) -> None:
    """Die before a DELETE."""
    if "DELETE" in statement:
        os.kill(os.getpid(), signal.SIGKILL)
