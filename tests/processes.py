"""Other processes for the tests: forked from a server that has imported the library once.

A process that is spawned imports SQLAlchemy, the library and its test anew, which takes a second
of a core; a process of the fork server begins after some milliseconds. It inherits neither
connections nor threads from the test, since the server has none.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

FORKSERVER = multiprocessing.get_context("forkserver")
PRELOADED = [
    *("pytest", "psycopg2", "pymysql", "sqlalchemy.orm"),
    *("sa_jobqueue.bulk", "sa_jobqueue.events", "sa_jobqueue.schedules", "tests.models"),
]
FORKSERVER.set_forkserver_preload(PRELOADED)


@contextmanager
def two_processes(target: Callable[..., None], *arguments: Any) -> Iterator[list[BaseProcess]]:
    """Call a function in two processes, which are killed when the block ends."""
    processes = [FORKSERVER.Process(target=target, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        yield list(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
