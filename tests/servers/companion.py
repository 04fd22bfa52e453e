"""A process beside ours that acts when it is told to, or when we are gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Companion:
    """Hold the pipe to a process that waits for its end: we close it, or the kernel does."""

    def __init__(
        self, *command: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            # Ctrl-C in the terminal is for us; we tell the companion in the end.
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def tell(self, line: str) -> None:
        """Write a line to the process; nothing happens if it is gone."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(f"{line}\n".encode())
                pipe.flush()

    def end(self) -> None:
        """Tell the process to act now, and wait until it has."""
        # Told, not only closed: a child forked meanwhile may hold the pipe open.
        self.tell("end")
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()
