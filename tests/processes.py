"""Other processes for the tests: forked from a server that has imported the library once.

A process that is spawned imports SQLAlchemy, the library and its test anew, which takes a second
of a core; a process of the fork server begins after some milliseconds. It inherits neither
connections nor threads from the test, since the server has none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL

from tests.support import until

FORKSERVER = multiprocessing.get_context("forkserver")
PRELOADED = [
    *("pytest", "psycopg2", "pymysql", "sqlalchemy.orm"),
    *("sa_jobqueue.bulk", "sa_jobqueue.events", "sa_jobqueue.schedules", "tests.models"),
]
FORKSERVER.set_forkserver_preload(PRELOADED)


class Victim:
    """A process that calls a function with the database's URL, arguments and a pipe to us."""

    def __init__(self, url: URL, target: Callable[..., object], *args: Any) -> None:
        self.pipe, there = FORKSERVER.Pipe()
        written = url.render_as_string(hide_password=False)
        self.process = FORKSERVER.Process(target=target, args=(written, *args, there), daemon=True)
        self.process.start()
        there.close()

    def hears(self) -> Any:
        """Return the next message of the process."""
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stand_still(self) -> None:
        """Stop the process, and wait until it is stopped."""
        self.signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")

    def kill(self) -> None:
        """End the process by SIGKILL, and wait until it is gone."""
        self.process.kill()
        # With a timeout, join() would wait for the process's forks, too.
        self.process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.pipe.close()
