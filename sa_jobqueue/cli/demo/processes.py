"""The processes of a run: they are started, told what to do, heard, and always ended.

Each process reports through a pipe of its own, and reads the phase from memory that it
shares with the parent. Neither needs a lock, so a process that is stopped or killed
blocks no other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType

import click

from ..stop_signals import StopSignals
from .child_process import LOOK_EVERY, Broken, Phase, Ready, Report, run_child
from .workload import Workload

#: How long a process may take to end when it is told to, in seconds.
PATIENCE = 5.0


@dataclass
class Child:
    """A process, as its parent sees it."""

    name: str
    process: SpawnProcess
    pipe: Connection
    consumer: bool


@dataclass
class Processes:
    """All processes of a run; leaving the ``with`` block ends them."""

    workload: Workload
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Processes:
        self._context = multiprocessing.get_context("spawn")
        self._phase = self._context.RawValue("i", Phase.STARTING)
        # Only the parent handles Ctrl-C: children inherit that the signal is ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._start("consumer", self.workload.consumers)
            self._start("producer", self.workload.producers)
        except BaseException:
            self.end()
            raise
        finally:
            signal.signal(signal.SIGINT, before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def any_producer_left(self) -> bool:
        """Whether a producer still runs."""
        return any(not child.consumer for child in self.children)

    @property
    def any_left(self) -> bool:
        """Whether a process still runs."""
        return bool(self.children)

    def enter(self, phase: Phase) -> None:
        """Tell all processes what to do next."""
        self._phase.value = phase

    def wait_until_ready(self, stop: StopSignals) -> None:
        """Wait until every process has started, which takes seconds."""
        missing = len(self.children)
        while missing and not stop.received:
            missing -= sum(isinstance(report, Ready) for report in self.reports(10 * LOOK_EVERY))

    def reports(self, seconds: float) -> Iterator[Report]:
        """Listen for so many seconds, and yield what the processes report.

        Raises:
            ClickException: a process failed or crashed.
        """
        self._wake()
        deadline = time.monotonic() + seconds
        while self.children and (left := deadline - time.monotonic()) > 0:
            pipes = {child.pipe: child for child in self.children}
            for pipe in wait(list(pipes), left):
                assert isinstance(pipe, Connection)
                yield from self._receive(pipes[pipe])

    def end(self) -> None:
        """End the remaining processes at once."""
        for child in self.children:
            child.process.terminate()
        self.enter(Phase.STOPPED)
        self._wake()  # a stopped process receives SIGTERM only when it continues
        deadline = time.monotonic() + PATIENCE
        for child in self.children:
            child.process.join(max(deadline - time.monotonic(), 0))
            if child.process.exitcode is None:
                child.process.kill()
                child.process.join()
        self.children.clear()

    def _start(self, role: str, count: int) -> None:
        for number in range(1, count + 1):
            receiving, sending = self._context.Pipe(duplex=False)
            consumer = role == "consumer"
            process = self._context.Process(
                target=run_child,
                args=(consumer, number, self.workload, self._phase, sending),
                name=f"{role} {number}",
                daemon=True,
            )
            process.start()
            sending.close()  # so that the pipe ends when the child ends
            self.children.append(Child(process.name, process, receiving, consumer))

    def _receive(self, child: Child) -> Iterator[Report]:
        try:
            report: Report = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._remove(child)
            return
        if isinstance(report, Broken):
            raise click.ClickException(f"{child.name}: {report.error}")
        yield report

    def _remove(self, child: Child) -> None:
        """Forget a process that has ended.

        Raises:
            ClickException: it did not end with exit code 0.
        """
        child.process.join(PATIENCE)
        code = child.process.exitcode
        if code != 0:
            raise click.ClickException(f"{child.name} crashed: {_crash_text(code)}")
        self.children.remove(child)

    def _wake(self) -> None:
        """Continue stopped consumers.

        This is repeated, since a consumer may see the pause and stop only after its end.
        """
        if self._phase.value == Phase.PAUSED:
            return
        for child in self.children:
            pid = child.process.pid
            if child.consumer and pid is not None and child.process.is_alive():
                os.kill(pid, signal.SIGCONT)


def _crash_text(code: int | None) -> str:
    if code is None:
        return "it has closed its pipe and does not end"
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
