"""The processes of a workload: started, told what to do, heard, and never left behind.

Each process reports through a pipe of its own, and reads the phase from memory
that it shares with the parent. Neither needs a lock: a process that is stopped
or killed holds up no other.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, TypeAlias

import click
from sqlalchemy.exc import SQLAlchemyError

from ..errors import in_one_line
from ..stopping import Stopping
from .workload import Consumed, GoOn, Produced, Workload, consume, produce

#: How long a process may take to end once it was told to, in seconds.
PATIENCE = 5.0

LOOK_EVERY = 0.02

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Phase(IntEnum):
    """What the processes are to do."""

    STARTING = 0  # wait for the others
    RUNNING = 1
    PAUSED = 2  # consumers stop themselves; producers go on
    CLOSING = 3  # producers end; consumers go on
    DRAINING = 4  # consumers end when nothing is left
    STOPPED = 5  # all end after the transaction that they are in


@dataclass(frozen=True)
class Ready:
    """A process has been started, and waits for the others."""


@dataclass(frozen=True)
class Broken:
    """A process ends because of this."""

    error: str


Report: TypeAlias = "Ready | Broken | Produced | Consumed"

#: A RawValue, of which ctypes has no name to say: ``.value`` is the Phase.
SharedPhase: TypeAlias = Any


# The child's side


def main_of_child(
    consumer: bool, number: int, workload: Workload, phase: SharedPhase, pipe: Connection
) -> None:
    """Run one producer or consumer, and report."""
    die_with_parent()
    role: Callable[[int, Workload, GoOn], Iterator[Report]] = consume if consumer else produce
    with suppress(BrokenPipeError):  # the parent is gone
        pipe.send(Ready())
        try:
            for report in role(number, workload, lambda: go_on(phase, consumer=consumer)):
                pipe.send(report)
        except SQLAlchemyError as error:
            pipe.send(Broken(in_one_line(error)))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, stopped or not.

    Where the kernel cannot, :func:`go_on` notices.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def go_on(phase: SharedPhase, *, consumer: bool) -> bool | None:
    """Tell a process between two transactions: go on, drain (True), or end (None)."""
    while alive := _parent_lives():
        if phase.value == Phase.STARTING:
            time.sleep(LOOK_EVERY)
        elif phase.value == Phase.PAUSED and consumer:
            # Here, where no transaction is open: on SQLite it would hold up the producers.
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            break
    last = Phase.DRAINING if consumer else Phase.PAUSED
    if not alive or phase.value > last:
        return None
    return bool(phase.value == Phase.DRAINING)


def _parent_lives() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()


# The parent's side


@dataclass
class Member:
    """One process, as its parent sees it."""

    name: str
    process: SpawnProcess
    pipe: Connection
    consumer: bool


@dataclass
class Team:
    """All processes of a workload; leaving the ``with`` block ends them."""

    workload: Workload
    members: list[Member] = field(default_factory=list)

    def __enter__(self) -> Team:
        self._context = multiprocessing.get_context("spawn")
        self._phase = self._context.RawValue("i", Phase.STARTING)
        # What is ignored here is ignored by the children: Ctrl-C is for the parent.
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
    def producing(self) -> bool:
        """Whether a producer has not ended."""
        return any(not member.consumer for member in self.members)

    @property
    def working(self) -> bool:
        """Whether anybody has not ended."""
        return bool(self.members)

    def go(self, phase: Phase) -> None:
        """Tell all what to do next."""
        self._phase.value = phase

    def gather(self, stopping: Stopping) -> None:
        """Wait until every process is there; their start takes seconds."""
        missing = len(self.members)
        while missing and not stopping:
            missing -= sum(isinstance(report, Ready) for report in self.reports(10 * LOOK_EVERY))

    def reports(self, seconds: float) -> Iterator[Report]:
        """Listen for so long, and hand on what the processes say.

        Raises:
            ClickException: a process failed or crashed.
        """
        self._wake()
        deadline = time.monotonic() + seconds
        while self.members and (left := deadline - time.monotonic()) > 0:
            pipes = {member.pipe: member for member in self.members}
            for pipe in wait(list(pipes), left):
                assert isinstance(pipe, Connection)
                yield from self._receive(pipes[pipe])

    def end(self) -> None:
        """End the processes that are left, at once."""
        for member in self.members:
            member.process.terminate()
        self.go(Phase.STOPPED)
        self._wake()  # a stopped process gets SIGTERM only when it goes on
        deadline = time.monotonic() + PATIENCE
        for member in self.members:
            member.process.join(max(deadline - time.monotonic(), 0))
            if member.process.exitcode is None:
                member.process.kill()
                member.process.join()
        self.members.clear()

    def _start(self, role: str, count: int) -> None:
        for number in range(1, count + 1):
            receiving, sending = self._context.Pipe(duplex=False)
            consumer = role == "consumer"
            process = self._context.Process(
                target=main_of_child,
                args=(consumer, number, self.workload, self._phase, sending),
                name=f"{role} {number}",
                daemon=True,
            )
            process.start()
            sending.close()  # so that the end of the child is the end of the pipe
            self.members.append(Member(process.name, process, receiving, consumer))

    def _receive(self, member: Member) -> Iterator[Report]:
        try:
            report: Report = member.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._let_go(member)
            return
        if isinstance(report, Broken):
            raise click.ClickException(f"{member.name}: {report.error}")
        yield report

    def _let_go(self, member: Member) -> None:
        """Take leave of a process that has ended, if it ended well."""
        member.process.join(PATIENCE)
        code = member.process.exitcode
        if code != 0:
            raise click.ClickException(f"{member.name} crashed: {_how(code)}")
        self.members.remove(member)

    def _wake(self) -> None:
        """Have stopped consumers go on.

        Again and again: one may have seen the pause, and stop after it is over.
        """
        if self._phase.value == Phase.PAUSED:
            return
        for member in self.members:
            pid = member.process.pid
            if member.consumer and pid is not None and member.process.is_alive():
                os.kill(pid, signal.SIGCONT)


def _how(code: int | None) -> str:
    if code is None:
        return "it closed its pipe and does not end"
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
