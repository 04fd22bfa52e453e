"""Processes of adapters, commanded from here; and crews of workers that drain a queue."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.adapters.catalogue import Entry
from benchmarks.harness.databases import Database

ROOT = Path(__file__).resolve().parents[2]


class HostFailed(RuntimeError):
    """An adapter's process ended before it answered."""


class JobsLost(AssertionError):
    """A queue lost jobs, or ran some twice."""


@dataclass(frozen=True)
class Answer:
    """The answer to a command.

    Attributes:
        begun, ended: seconds on the machine's monotonic clock.
        retries: transactions that the adapter ran again since it was made.
    """

    result: Any
    begun: float
    ended: float
    retries: int

    @property
    def seconds(self) -> float:
        """How long the command took."""
        return self.ended - self.begun


class Host:
    """A process of an adapter.

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
    """Give a command to all hosts at once, and fetch their answers."""
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


@dataclass(frozen=True)
class Crew:
    """Workers on an empty queue, all connected, and a process that fills the queue."""

    entry: Entry
    keeper: Host
    workers: list[Host]
    jobs: int

    def fill(self) -> Answer:
        """Insert the jobs."""
        return self.keeper.ask(f"fill {self.jobs}")

    def drain(self) -> list[Answer]:
        """Let all workers drain the queue, and check every job.

        Raises:
            JobsLost: not every job was run exactly once.
            HostFailed: a worker's process ended early.
        """
        answers = ask_all(self.workers, "drain")
        run = [number for answer in answers for number in answer.result]
        left = self.keeper.ask("left").result
        check_each_ran_once(self.entry.name, range(1, self.jobs + 1), run, left)
        return answers


@contextmanager
def crew(
    entry: Entry, database: Database, *, batch: int, workers: int, jobs: int
) -> Iterator[Crew]:
    """Make an empty queue, and connect workers to it."""
    path, python = entry.path_on(database.name), entry.interpreter()
    with hosts(workers + 1, python, path, database.url, batch) as (keeper, *working):
        keeper.ask("create")
        ask_all(working, "open")
        yield Crew(entry, keeper, working, jobs)
        ask_all(working, "close")


def check_each_ran_once(who: str, jobs: Iterable[int], run: Iterable[int], left: int) -> None:
    """Compare the jobs that workers ran with those that were inserted.

    Raises:
        JobsLost: not every job was run exactly once.
    """
    inserted, counted = set(jobs), Counter(run)
    twice = sum(count > 1 for count in counted.values())
    missing = len(inserted.difference(counted))
    if twice or missing or left or len(counted) != len(inserted):
        raise JobsLost(
            f"{who}: of {len(inserted)} jobs {twice} were run twice, {missing} never, "
            f"{left} are left"
        )
