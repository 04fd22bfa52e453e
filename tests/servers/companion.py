"""A process that acts when told to, or when the process that started it is gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Companion:
    """Hold the pipe to a process that waits for its end, which we or the kernel close."""

    def __init__(
        self, *command: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            # Ctrl-C in the terminal is for us only; we tell the companion at the end.
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def tell(self, line: str) -> None:
        """Write a line to the process, if it still runs."""
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
