"""One process of a run: it plays a producer or a consumer, and reports through a pipe."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from ..errors import in_one_line
from .consumer import Consumed, consume
from .producer import Produced, produce
from .workload import GoOn, Workload

#: How often a process looks at the phase while it waits for the others, in seconds.
LOOK_EVERY = 0.02

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Phase(IntEnum):
    """What the processes are to do."""

    STARTING = 0  # wait for the others
    RUNNING = 1
    PAUSED = 2  # consumers stop themselves; producers go on
    CLOSING = 3  # producers end; consumers go on
    DRAINING = 4  # consumers end when nothing is left
    STOPPED = 5  # every process ends after its transaction


@dataclass(frozen=True)
class Ready:
    """A process has started, and waits for the others."""


@dataclass(frozen=True)
class Broken:
    """A process ends because of this error."""

    error: str


Report: TypeAlias = "Ready | Broken | Produced | Consumed"

#: A RawValue, a type that ctypes does not name; its ``.value`` is the Phase.
SharedPhase: TypeAlias = Any


def run_child(
    consumer: bool, number: int, workload: Workload, phase: SharedPhase, pipe: Connection
) -> None:
    """Run a producer or a consumer, and send its reports."""
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
    """Have the kernel kill this process when its parent dies, even while it is stopped.

    Where the kernel cannot, :func:`go_on` notices that the parent is gone.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def go_on(phase: SharedPhase, *, consumer: bool) -> bool | None:
    """Tell a process between two transactions to go on (False), drain (True), or end (None)."""
    while alive := _parent_lives():
        if phase.value == Phase.STARTING:
            time.sleep(LOOK_EVERY)
        elif phase.value == Phase.PAUSED and consumer:
            # No transaction is open here; on SQLite it would block the producers.
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
