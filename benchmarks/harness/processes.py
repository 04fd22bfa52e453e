"""Processes of adapters, from the side of the one who gives the commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class HostFailed(RuntimeError):
    """An adapter's process ended where it should have answered."""


@dataclass(frozen=True)
class Answer:
    """What came of a command.

    Attributes:
        begun, ended: seconds on the machine's monotonic clock.
        retries: transactions that the adapter ran again, since it was made.
    """

    result: Any
    begun: float
    ended: float
    retries: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.begun


class Host:
    """One process of one adapter.

    Args:
        python: the interpreter that has the adapter's packages.
        path: ``module:class`` of the adapter.
    """

    def __init__(self, python: str, path: str, url: str, batch: int) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.harness.host", path, url, str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def tell(self, command: str) -> None:
        """Give a command; the answer is fetched later."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        """Fetch the answer to a command.

        Raises:
            HostFailed: the process ended; its error stands on standard error.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise HostFailed(f"{self.path} ended with exit code {self._process.wait()}")
        return Answer(**json.loads(line))

    def ask(self, command: str) -> Answer:
        """Give a command and fetch its answer."""
        self.tell(command)
        return self.answer()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def ask_all(hosts: Iterable[Host], command: str) -> list[Answer]:
    """Give a command to all at once, and fetch their answers."""
    told = list(hosts)
    for host in told:
        host.tell(command)
    return [host.answer() for host in told]


@contextmanager
def hosts(count: int, python: str, path: str, url: str, batch: int) -> Iterator[list[Host]]:
    """Run several processes of an adapter."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            host = Host(python, path, url, batch)
            stack.callback(host.stop)
            made.append(host)
        yield made
