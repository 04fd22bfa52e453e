"""The processes of adapters, forked from a server that has imported the library once.

To start a process takes a second of a core, and a benchmark starts up to ten.
"""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.connection import Connection

from benchmarks.harness import host
from benchmarks.harness.processes import Host
from tests.processes import FORKSERVER


class ForkedHost(Host):
    """The same process, by the same lines of text."""

    def __init__(self, python: str, path: str, url: str, batch: int) -> None:
        assert python == sys.executable, f"{path} runs in an environment of its own"
        self.path = path
        self._process = Forked(path, url, batch)  # type: ignore[assignment]  # what Host uses of it


class Forked:
    """What a host uses of :class:`subprocess.Popen`."""

    def __init__(self, path: str, url: str, batch: int) -> None:
        theirs_in, ours_in = FORKSERVER.Pipe(duplex=False)
        ours_out, theirs_out = FORKSERVER.Pipe(duplex=False)
        # The server's environment is that of its own start.
        arguments = (theirs_in, theirs_out, dict(os.environ), path, url, str(batch))
        self._process = FORKSERVER.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs_in.close()
        theirs_out.close()
        self.stdin = os.fdopen(os.dup(ours_in.fileno()), "w", encoding="utf-8")
        self.stdout = os.fdopen(os.dup(ours_out.fileno()), encoding="utf-8")
        ours_in.close()
        ours_out.close()

    def wait(self) -> int | None:
        """Wait for its end, and return its exit code."""
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()

    def communicate(self) -> None:
        """Wait for its end, and close the pipes."""
        self.wait()
        self._process.close()
        self.stdin.close()
        self.stdout.close()


def serve(
    commands: Connection,
    answers: Connection,
    environment: dict[str, str],
    path: str,
    url: str,
    batch: str,
) -> None:
    """Be the process of an adapter."""
    os.environ.clear()  # that of the server may be of another test
    os.environ.update(environment)
    sys.stdin = os.fdopen(os.dup(commands.fileno()), encoding="utf-8")
    sys.stdout = os.fdopen(os.dup(answers.fileno()), "w", encoding="utf-8")
    commands.close()
    answers.close()
    host.load(path)
    # What was imported stays: the host looks for garbage before each command.
    gc.freeze()
    host.main(path, url, batch)
