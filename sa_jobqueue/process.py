"""The running process: its name, its functions, its signals, and how its code waits.

Code waits, and runs other code beside itself, by a Runtime: here that of threads.
:mod:`sa_jobqueue.asyncio` has another one, of an event loop's tasks. So there is one worker and one
heartbeat, and neither knows what it runs in. Python sets signal handlers in the main thread only.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol


def process_name(host_length: int) -> str:
    """Return the first characters of the host's name, and the process id."""
    # A "~" marks the owners whose death can be noticed.
    return f"{socket.gethostname().replace('~', '-')[:host_length]}-{os.getpid()}"


def function_name(function: Any) -> str:
    """Return the name of a function or another callable, without its address in memory."""
    name = getattr(function, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else repr(function)


class Flag:
    """Set once from anywhere, and waited for; as threading.Event.

    And a signal handler may set it while its own thread begins to wait.
    """

    def __init__(self) -> None:
        self._set = False
        self._changed = threading.Condition()

    def set(self) -> None:
        """Set the flag, for good."""
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def is_set(self) -> bool:
        """Tell whether the flag is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most so many seconds; tell whether it is."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)


class Background(Protocol):
    """Work that runs in the background; as threading.Thread."""

    def join(self, timeout: float | None = None) -> None: ...


@dataclass(frozen=True)
class Runtime:
    """What a worker runs in: threads, or the tasks of an event loop.

    Attributes:
        flag: makes a flag.
        lock: makes a lock, as threading.RLock; a signal handler may take it in the thread that has
            it already.
        condition: makes a threading.Condition or its like, of that lock if one is given; several
            may share it.
        sleep: waits for so many seconds.
        start: runs work in the background, in a thread or a task of this `name`.
        run_blocking: runs work that waits for a synchronous driver, and returns its result.
    """

    flag: Callable[[], Flag]
    lock: Callable[[], Any]
    condition: Callable[..., Any]
    sleep: Callable[[float], None]
    start: Callable[..., Background]
    run_blocking: Callable[[Callable[[], Any]], Any]


def _start_thread(work: Callable[[], None], *, name: str) -> threading.Thread:
    """Start a thread, which ends with the process; it sees our context variables."""
    context = copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name=name, daemon=True)
    thread.start()
    return thread


THREADS = Runtime(
    flag=Flag,
    lock=threading.RLock,
    condition=threading.Condition,
    sleep=time.sleep,
    start=_start_thread,
    run_blocking=lambda work: work(),
)


#: The signals that ask a command to stop.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_handled(
    handler: Callable[[int, Any], object] | signal.Handlers, *signals: signal.Signals
) -> Iterator[None]:
    """Have signals call a handler; afterwards restore the handlers that they had before."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def first_signal_stops(
    stop: Callable[[], object],
    *signals: signal.Signals,
    then: Any = signal.default_int_handler,
) -> Iterator[None]:
    """Have the first of these signals call `stop`; by default the next raises KeyboardInterrupt.

    Args:
        signals: by default SIGINT and SIGTERM.
        then: the handler of the next signal.
    """
    chosen = signals or SIGNALS

    def stop_once(*_: object) -> None:
        for number in chosen:
            signal.signal(number, then)
        stop()

    with signals_handled(stop_once, *chosen):
        yield
