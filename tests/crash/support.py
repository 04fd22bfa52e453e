"""Processes that are killed, stopped, and let go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from tests.processes import FORKSERVER
from tests.support import until


class Victim:
    """A process that calls a function with the database's URL, arguments and a pipe to us."""

    def __init__(self, engine: Engine, target: Callable[..., object], *args: Any) -> None:
        self.pipe, there = FORKSERVER.Pipe()
        url = engine.url.render_as_string(hide_password=False)
        self.process = FORKSERVER.Process(target=target, args=(url, *args, there), daemon=True)
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
        self.process.join(60)

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.pipe.close()
